"""Runs that have ended leave neither memory nor files behind."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.engine.lives import EVERY_STEP, half_trained, lived
from support.engine.making import NOW, RUN, Clock, until

HOUR = 3600.0


async def test_an_unloaded_run_leaves_neither_journal_nor_archives(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        live = await life.make()
        await life.train_slowly(1, 2)
        assert life.journal().is_dir() and life.recovery_archives()

        unload = await life.engine.training.close(live)
        assert (await life.told(unload))["type"] == "unload_model"

        await until(lambda: not life.recovery_archives())
        assert life.journal().is_dir(), "its last result may be asked for by way of another server"
        life.engine.futures.forget(unload)  # as when it was delivered some time ago
        await until(lambda: not life.journal().exists())
        assert await life.engine.wake(RUN) is None


async def test_the_last_result_of_an_unloaded_run_outlives_the_server(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        unload = await first.engine.training.close(live)
        told = await first.told(unload)
        step = await first.engine.training.optim_step(live, 9, {})
        await first.told(step)
        await live.journal._journal._idle.wait()  # type: ignore[union-attr]  # there is one
        left = first.crash()

    async with lived(left) as second:
        promise = await second.engine.find_promise(step)
        assert promise is not None and promise.result is not None and promise.result.is_failure
        assert told["type"] == "unload_model"
        assert second.backend.runs == {}


async def test_a_run_that_was_being_unloaded_when_the_server_died_is_unloaded_by_the_next(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        first.backend.hold("close_run")
        await first.engine.training.close(live)
        await until(lambda: "close_run" in first.backend.words())
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        await until(lambda: "close_run" in second.backend.words())
        async with asyncio.timeout(10):
            while (await second.catalog.runs.get(RUN)).state != "unloaded":
                await asyncio.sleep(0.001)
        await until(lambda: second.backend.runs == {})


async def test_journals_of_runs_that_are_over_are_swept_away(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        live = await first.make()
        await first.train_slowly(1)
        await first.told(await first.engine.training.close(live))
        await first.written()
        left = first.crash()
        assert first.journal().is_dir()
    os.utime(left / first.journal().relative_to(home), (0, 0))  # it was some time ago

    async with lived(left) as second:
        await until(lambda: not second.journal().exists())
        await until(lambda: not second.recovery_archives())


async def test_a_parked_run_of_a_session_that_ends_is_not_woken_for_it(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        await life.engine.sessions.end_silent()
        life.backend.calls.clear()

        await life.catalog.sessions.finish("s", reason="success", now=NOW + timedelta(hours=1))
        await life.engine.sessions.finish("s")

        await until(lambda: not life.journal().exists() and not life.recovery_archives())
        assert life.backend.words() == []
        async with asyncio.timeout(10):
            while (await life.catalog.runs.get(RUN)).state != "unloaded":
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("environment", [{"models": {}}, {}])
async def test_the_session_of_a_run_that_does_not_go_on_ends_and_leaves_nothing(
    home: Path, environment: dict[str, Any]
) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2)
        await first.written()
        left = first.crash()

    async with lived(left, after=first, environment=environment) as second:
        live = await second.run()
        await live.lane.drained()
        if not environment:
            live.lose("its journal is damaged")

        await second.engine.sessions.finish("s")

        await until(lambda: not second.journal().exists() and not second.recovery_archives())
        assert second.engine.runs.get(RUN) is None
        assert (await second.catalog.runs.get(RUN)).state == "unloaded"


async def test_a_run_made_anew_has_nothing_of_the_one_that_was_lost(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(5, 6, 7)
        live = await life.run()
        live.lose("its journal is damaged")
        await life.engine._core.unloader.remove_lost(live)
        assert life.recovery_archives() != []

        life.seq_id = 1
        await life.make()
        await life.result(await life.ask_pass(1))
        life.backend.die("signal 9")

        assert await life.state() == (0, 1, 0)


async def test_a_journal_that_cannot_be_deleted_is_counted_once_and_reported_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        await life.told(await life.engine.training.close(live))
        await life.written()
        os.utime(life.journal(), (0, 0))  # it was some time ago

        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            for _ in range(3):
                await life.engine._core.unloader.sweep()

        await life.engine.flush_usage()
        uses = await life.catalog.usage.list(None, start=NOW - timedelta(hours=48), end=NOW + timedelta(hours=48))
        assert [use.amount for use in uses if use.type == "training"] == [5]
        assert caplog.text.count("journal not deleted") == 1
        await life.engine._core.unloader.sweep()
        assert not life.journal().exists()
        assert await life.catalog.usage.sources() == ()


async def test_a_live_run_is_neither_unloaded_nor_removed(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()

        assert not await life.engine._core.unloader.unload(RUN)
        assert not await life.engine._core.unloader.remove(RUN)

        assert life.engine.runs.get(RUN) is live
        assert (await life.catalog.runs.get(RUN)).state == "active"
