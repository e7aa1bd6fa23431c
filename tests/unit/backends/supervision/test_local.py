"""The local backend with a worker that answers without loading anything."""

from __future__ import annotations

import os
import signal

import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.engine.ownership.data_directory import is_owned, owned
from support.backends.scripted_worker import Rig, echo, rig, until

__all__ = ["rig"]
SOON = 0.001  # seconds that a worker is ready before a spare is started


async def test_the_worker_is_told_its_settings_and_its_command_line_shows_none(rig: Rig) -> None:
    async with rig.running() as backend:
        await until(lambda: backend.is_ready)

    assert backend.environment["config"]["store"] == str(rig.directory)
    assert backend.environment["config"]["threads"] == 0
    (descriptor,) = backend.environment["argv"]
    assert descriptor.isdigit()


async def test_a_command_that_cannot_be_run_is_a_death_like_any_other(rig: Rig) -> None:
    backend = rig.backend()
    command, backend._command = backend._command, ["/no/such/program"]
    await backend.start()
    await until(lambda: rig.lost)
    backend._command = command

    assert await echo(backend, a=1) == {"a": 1}

    await backend.stop()
    assert "could not be started" in rig.lost[0]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (11, "signal 11 (segmentation fault)"),
        (9, "signal 9 (SIGKILL, sent manually or by the OOM killer)"),
        (10, "signal 10"),
    ],
)
async def test_a_death_by_a_signal_is_told_in_words(rig: Rig, number: int, reason: str) -> None:
    async with rig.running() as backend:
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {"signal": number})
        await echo(backend)

    assert rig.lost == [f"the worker process ended with {reason}"]


async def test_what_a_worker_inherits_stays_open_until_it_ends(rig: Rig) -> None:
    with owned(rig.directory) as lock:
        backend = rig.backend(inherit=[lock])
        await backend.start()
        await echo(backend)

    assert is_owned(rig.directory)
    await backend.stop()
    assert not is_owned(rig.directory)


async def test_a_spare_replaces_a_worker_that_died_and_is_replaced_itself(rig: Rig) -> None:
    async with rig.running(spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        spare = backend.spare_pid
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {})

        assert await echo(backend, a=1) == {"a": 1}

        assert (backend.environment["pid"], backend.generation) == (spare, 2)
        await until(lambda: backend.spare_pid)
        assert backend.spare_pid != spare
    assert rig.lost == ["the worker process ended with signal 9 (SIGKILL, sent manually or by the OOM killer)"]


async def test_a_spare_that_died_unnoticed_costs_a_new_process_and_nothing_else(rig: Rig) -> None:
    async with rig.running(spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        assert backend._keeping is not None
        backend._keeping.cancel()  # from here on the spare is not looked at
        spare = backend.spare_pid
        assert spare is not None
        os.kill(spare, signal.SIGKILL)
        os.waitid(os.P_PID, spare, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {})

        assert await echo(backend, a=1) == {"a": 1}

        assert (backend.environment["pid"] != spare, backend.generation) == (True, 2)
    assert len(rig.lost) == 1, "a spare that waits is no worker yet"


async def test_a_spare_that_dies_while_it_waits_is_replaced(rig: Rig) -> None:
    async with rig.running(spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        first = backend.spare_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        await until(lambda: backend.spare_pid not in (None, first))

        assert await echo(backend, a=1) == {"a": 1}
    assert rig.lost == []


async def test_a_spare_that_dies_of_its_promotion_is_a_worker_that_died(rig: Rig) -> None:
    async with rig.running("dies when promoted", spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        spare = backend.spare_pid
        with pytest.raises(WorkerLost):
            await backend.optim_step("be killed", {})

        assert await echo(backend, a=1) == {"a": 1}

        assert backend.environment["pid"] != spare
    assert [reason[-len("exit code 8") :] for reason in rig.lost[1:]] == ["exit code 8"]


async def test_a_backend_that_stops_or_is_killed_leaves_no_spare(rig: Rig) -> None:
    async with rig.running(spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        stopped = backend.spare_pid
    async with rig.running(spare_seconds=SOON) as backend:
        await until(lambda: backend.spare_pid)
        killed = backend.spare_pid
        backend.kill()

    for pid in (stopped, killed):
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_without_the_setting_there_is_no_spare(rig: Rig) -> None:
    async with rig.running() as backend:
        await echo(backend)

        assert backend._keeping is None and backend.spare_pid is None
