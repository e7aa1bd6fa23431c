"""A run that its owner deletes leaves nothing behind but its checkpoints in the trash."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Literal

import pytest

from chockstone.catalog import RowMissing
from chockstone.engine import run_removal
from chockstone.engine.config import Busy
from chockstone.wire.failures import BadRequest
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import NOW, RUN, until


async def remove(life: Life) -> int:
    return await life.engine.remove_run(await life.catalog.runs.get(RUN), by="local")


async def check_gone(life: Life) -> None:
    await until(lambda: not life.recovery_archives() and not life.journal().exists())
    with pytest.raises(RowMissing):
        await life.catalog.runs.get(RUN)
    assert await life.engine.wake(RUN) is None
    assert RUN not in life.backend.runs


async def check_kept(life: Life, names: tuple[str, ...] = ("a",)) -> None:
    assert (await life.catalog.runs.get(RUN)).run_id == RUN
    assert tuple(row.name for row in await life.catalog.checkpoints.list_by_run(RUN, now=NOW)) == names
    await life.engine.audit.flush()
    assert "run_deleted" not in [row.event for row in await life.catalog.audit.list("local")]


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


@pytest.mark.parametrize("state", ["parked", "active"])  # active: as after a crash, before the server has woken it
async def test_a_run_that_is_woken_while_it_is_removed_is_ended(home: Path, state: Literal["parked", "active"]) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.told(await life.ask_save("a"))
        assert await life.engine._core.registry.park(live)
        row = await life.catalog.runs.set_state(RUN, state)
        waking = asyncio.create_task(life.engine.wake(RUN))
        await until(lambda: life.engine.runs.lock(RUN).locked())

        removed = await life.engine.remove_run(row, by="local")

        assert await waking is not None
        assert removed == 1
        await check_gone(life)


async def test_a_run_whose_lane_the_shutdown_halted_is_kept_with_its_checkpoints(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.told(await life.ask_save("a"))
        live.lane.halt()

        with pytest.raises(Busy, match="the server is shutting down"):
            await remove(life)

        await check_kept(life)
        assert not live.is_closing


async def test_a_run_whose_lane_is_halted_before_its_close_is_kept_with_its_checkpoints(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.told(await life.ask_save("a"))
        life.backend.hold("forward_backward")
        await life.ask_pass(1)
        removing = asyncio.create_task(remove(life))
        await until(lambda: live.lane.waiting)

        live.lane.halt()
        life.backend.let_go("forward_backward")

        with pytest.raises(Busy, match="did not close it"):
            await removing
        await check_kept(life)


async def test_a_run_that_the_worker_did_not_close_can_be_removed_later(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        life.backend.fail_next("close_run", BadRequest("not now"))

        with pytest.raises(Busy, match="did not close it"):
            await remove(life)

        assert await remove(life) == 0
        await check_gone(life)


async def test_a_run_whose_journal_cannot_be_deleted_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lived(home) as life:
        await life.make()
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(Busy, match="its journal cannot be deleted"):
                await remove(life)

        await check_kept(life, names=())
        await remove(life)
        await check_gone(life)
