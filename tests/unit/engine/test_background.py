from __future__ import annotations

import asyncio

import pytest

from chockstone.engine.background import BackgroundTasks, Shutdown
from support.engine.making import settle_down


def test_a_shutdown_begins_once_and_stays() -> None:
    shutdown = Shutdown()
    assert not shutdown.has_begun

    shutdown.begin()
    shutdown.begin()

    assert shutdown.has_begun


async def test_tasks_run_until_they_end_and_are_waited_for() -> None:
    tasks, done = BackgroundTasks(Shutdown()), asyncio.Event()

    async def work() -> None:
        await done.wait()

    tasks.start(work())
    draining = asyncio.create_task(tasks.drained())
    await settle_down()
    assert not draining.done()
    done.set()

    await asyncio.wait_for(draining, 10)


async def test_a_failure_is_logged_and_a_cancellation_is_not(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks(Shutdown())

    async def fail() -> None:
        raise RuntimeError("out of luck")

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks.start(fail())
    tasks.start(wait())
    await settle_down()
    tasks.cancel()
    await tasks.drained()
    await settle_down()

    assert [record.getMessage() for record in caplog.records] == ["background work failed error=out of luck"]
