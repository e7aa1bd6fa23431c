"""A run that its owner deletes leaves nothing behind but its checkpoints in the trash."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import RowMissing
from chockstone.engine import run_removal
from chockstone.wire.failures import BadRequest
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import RUN, until


async def remove(life: Life) -> int:
    return await life.engine.remove_run(await life.catalog.runs.get(RUN), by="local")


async def check_gone(life: Life) -> None:
    await until(lambda: not life.recovery_archives() and not life.journal().exists())
    with pytest.raises(RowMissing):
        await life.catalog.runs.get(RUN)
    assert await life.engine.wake(RUN) is None
    assert RUN not in life.backend.runs


async def test_a_live_run_is_ended_and_its_checkpoints_go_to_the_trash(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP, trash_seconds=3600.0) as life:
        await life.make()
        await life.train_slowly(1)
        await life.told(await life.ask_save("a"))
        await life.told(await life.ask_save("b"))

        assert await remove(life) == 2

        await check_gone(life)
        trashed = await life.engine.checkpoints.list_trash("local")
        assert {each.checkpoint.name for each in trashed} == {"a", "b"}
        await life.engine.audit.flush()
        assert [row.event for row in await life.catalog.audit.list("local")][-1] == "run_deleted"
        await life.engine.checkpoints.undelete(trashed[0].trash_id, by="local")


@pytest.mark.parametrize("is_parked", [True, False])
async def test_a_parked_and_an_unloaded_run_are_removed(home: Path, is_parked: bool) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(1)
        if is_parked:
            assert await life.engine._core.registry.park(live)
        else:
            await life.told(await life.engine.training.close(live))

        assert await remove(life) == 0

        await check_gone(life)


async def test_a_run_whose_operations_do_not_end_is_kept_and_can_be_removed_later(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_removal, "_END_SECONDS", 0.05)
    async with lived(home) as life:
        await life.make()
        life.backend.hold("forward_backward")
        await life.ask_pass(1)

        with pytest.raises(BadRequest, match="still executes operations"):
            await remove(life)

        assert (await life.catalog.runs.get(RUN)).run_id == RUN
        life.backend.let_go("forward_backward")
        await remove(life)
        await check_gone(life)
