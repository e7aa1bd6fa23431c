"""Rows of runs are rebuilt from their journals."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import RowMissing
from support.engine.lives import half_trained, lived
from support.engine.making import RUN


async def test_a_lost_catalog_is_filled_from_the_journals(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        await first.told(await first.ask_sampler(3))
        await first.written()
        left = first.crash()
    for lost in left.glob("catalog.sqlite3*"):
        lost.unlink()

    async with lived(left, after=first) as second:
        assert await second.state() == (5, 7, 1)
        row = await second.catalog.runs.get(RUN)
        assert (row.owner, row.base_model, row.state) == ("local", "tiny", "active")
        sampler = await second.catalog.samplers.get("s:sample:3")
        assert sampler.archive in second.backend.archives
        assert (await second.told(first.asked[1]))["metrics"]["weight"] == 5
        await second.train(1)


async def test_a_run_that_was_closed_is_not_rebuilt(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.told(await first.engine.training.close(live))
        await live.lane.drained()
        await first.written()
        left = first.crash()
    for lost in left.glob("catalog.sqlite3*"):
        lost.unlink()

    async with lived(left) as second:
        with pytest.raises(RowMissing):
            await second.catalog.runs.get(RUN)
