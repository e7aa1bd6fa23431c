"""Step, last loss and parent of a run: in the catalog after a while, and right after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import RunProgress
from chockstone.engine.config import Durability
from support.engine.lives import EVERY_STEP, RARELY, Life, lived
from support.engine.making import NOW, RUN

OTHER = "s:train:1"


async def recorded(life: Life, run_id: str = RUN) -> RunProgress:
    row = await life.catalog.runs.get(run_id)
    return RunProgress(row.steps, row.last_loss, row.parent)


async def load_into_other(life: Life) -> str:
    """A second run, made from a checkpoint of the first one. Returns the path of the checkpoint."""
    await life.told(await life.ask_save("a"))
    row = await life.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    other = await life.make(1)
    await life.told(await life.engine.training.load(other, 1, row, with_optimizer=True))
    return row.path


async def test_progress_is_flushed_and_only_changes_are_written(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(4, 8)

        assert await recorded(life) == RunProgress(None, None, None), "no write per step"
        await life.engine._core.progress.flush()
        assert await recorded(life) == RunProgress(2, 2.0, None)

        await life.catalog.runs.record_progress({RUN: RunProgress(99)})
        await life.engine._core.progress.flush()
        assert (await recorded(life)).steps == 99, "nothing changed, so nothing is written"


async def test_a_run_that_loads_a_checkpoint_of_another_run_has_a_parent(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(4)
        path = await load_into_other(life)
        await life.told(await life.ask_load("a"))  # its own checkpoint makes no parent
        await life.engine._core.progress.flush()

        assert await recorded(life, OTHER) == RunProgress(1, None, path)
        assert (await recorded(life)).parent is None


@pytest.mark.parametrize("durability", [RARELY, EVERY_STEP], ids=["all is replayed", "all is in an archive"])
async def test_after_a_kill_the_recovery_finds_what_the_catalog_missed(home: Path, durability: Durability) -> None:
    async with lived(home, durability=durability) as first:
        await first.make()
        await first.train_slowly(4, 8)
        await first.written()
        assert (await recorded(first)).steps is None
        left = first.crash()

    async with lived(left, after=first, durability=durability) as second:
        await second.state()
        await second.engine._core.progress.flush()
        assert await recorded(second) == RunProgress(2, 2.0, None)


async def test_the_parent_outlives_the_catalog(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train(4)
        path = await load_into_other(first)
        await first.train(8, run_id=OTHER)
        await (await first.run(OTHER)).lane.drained()
        await first.written()
        left = first.crash()
    for file in left.glob("catalog.sqlite3*"):
        file.unlink()

    async with lived(left, after=first, durability=EVERY_STEP) as second:
        await second.state(OTHER)
        await second.engine._core.progress.flush()
        assert await recorded(second, OTHER) == RunProgress(2, 2.0, path)


async def test_a_run_that_is_unloaded_or_parked_leaves_its_progress(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        other = await life.make(1)
        await life.train(4)
        await life.train(8, 8, run_id=OTHER)

        await life.told(await life.engine.training.close(live))
        assert await life.engine._core.registry.park(other)

        assert (await recorded(life), await recorded(life, OTHER)) == (RunProgress(1, 1.0), RunProgress(2, 2.0))
