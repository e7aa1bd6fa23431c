"""The spare by itself: a process that waits for one byte, and says which one it got by its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from chockstone.backends.supervision.process import PROMOTION, WorkerProcess, spawn
from chockstone.backends.supervision.spare import SpareWorker

WAITS = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[-1]))
sys.exit(40 + (sock.recv(1) or b"\\0")[0])
"""


def waiting() -> WorkerProcess:
    return spawn([sys.executable, "-I", "-S", "-c", WAITS], environment=os.environ)


@pytest.fixture
def spare() -> Iterator[SpareWorker]:
    spare = SpareWorker(waiting)
    yield spare
    spare.end()


def kill(spare: SpareWorker) -> None:
    """On return the process is dead, and the spare has not been asked about it."""
    assert spare._waiting is not None
    os.kill(spare._waiting.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, spare._waiting.process.pid, os.WEXITED | os.WNOWAIT)


def test_one_process_waits_until_it_is_promoted(spare: SpareWorker) -> None:
    assert spare.pid is None and spare.promote() is None

    spare.fill()
    first = spare.pid
    spare.fill()
    assert first is not None and spare.pid == first
    promoted = spare.promote()

    assert promoted is not None and promoted.process.pid == first
    assert promoted.process.wait(30) == 40 + PROMOTION[0]
    promoted.channel.close()
    assert spare.pid is None and spare.promote() is None


def test_a_spare_that_died_is_not_promoted(spare: SpareWorker, caplog: pytest.LogCaptureFixture) -> None:
    spare.fill()
    kill(spare)

    assert spare.promote() is None
    assert "spare worker died code=-9" in caplog.text


def test_a_spare_that_hung_up_is_not_promoted(spare: SpareWorker) -> None:
    spare.fill()
    assert spare._waiting is not None
    spare._waiting.channel.shutdown(2)  # its process may not have ended yet

    assert spare.promote() is None
    assert spare.pid is None


def test_a_spare_that_died_is_replaced_and_told_of(spare: SpareWorker) -> None:
    assert spare.fill() is False
    first = spare.pid
    kill(spare)

    assert spare.fill() is True
    assert spare.pid not in (None, first)
    assert spare.fill() is False


def test_a_spare_that_cannot_be_started_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    spare = SpareWorker(lambda: spawn(["/no/such/program"], environment={}))

    assert spare.fill() is True
    assert spare.promote() is None
    assert "spare worker not started" in caplog.text


def test_an_ended_spare_leaves_no_process(spare: SpareWorker) -> None:
    spare.fill()
    pid = spare.pid
    assert pid is not None

    spare.end()

    assert spare.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
