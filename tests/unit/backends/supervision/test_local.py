"""The local backend with a worker that answers without loading anything."""

from __future__ import annotations

import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.engine.ownership.data_directory import is_owned, owned
from support.backends.scripted_worker import Rig, echo, rig, until

__all__ = ["rig"]


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
