"""Real processes: the tracker's own, and ones that hang, fail and die."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.engine.tracking.tracker_process import TrackerBatch, TrackerFailed, TrackerProcess
from support.live import is_alive
from support.trackers import checkpoint, facts, points

_CHANNEL = "import os, socket, sys, time; channel = socket.socket(fileno=int(sys.argv[-1])); "


def program(body: str) -> tuple[str, ...]:
    return (sys.executable, "-c", _CHANNEL + body)


def batch(first: int = 1, last: int = 2) -> TrackerBatch:
    return TrackerBatch(facts(), points(first, last), [checkpoint(1)])


async def test_a_batch_is_taken_by_the_real_process(tmp_path: Path) -> None:
    tracker = TrackerProcess("tensorboard", tmp_path / "new")
    await tracker.send(batch(1, 2))
    await tracker.send(batch(3, 4))

    assert await tracker.close() == 0
    assert await tracker.close() is None

    shown = EventAccumulator(str(tmp_path / "new" / "tensorboard" / facts().name))
    shown.Reload()
    assert [event.value for event in shown.Scalars("loss")] == [1.0, 2.0, 3.0, 4.0]


async def test_a_tracker_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    body = f"open({str(note)!r}, 'a').write(str(os.getpid()) + chr(10)); time.sleep(600)"
    tracker = TrackerProcess("mlflow", tmp_path, answer_seconds=2.0, command=program(body))

    for _ in range(2):
        with pytest.raises(TrackerFailed, match="it did not answer in 2 s"):
            await tracker.send(batch())

    first, second = map(int, note.read_text().split())
    assert first != second
    assert not is_alive(first) and not is_alive(second)


async def test_a_tracker_that_dies_says_why(tmp_path: Path) -> None:
    tracker = TrackerProcess("mlflow", tmp_path, command=program("sys.exit('no licence')"))

    with pytest.raises(TrackerFailed, match="its process ended with exit code 1: no licence"):
        await tracker.send(batch())


async def test_a_refused_batch_keeps_the_process(tmp_path: Path) -> None:
    body = "[channel.sendall(b'{\"error\": \"quota is used up\"}\\n') for _ in channel.makefile('rb')]"
    tracker = TrackerProcess("mlflow", tmp_path, command=program(body))

    for _ in range(2):
        with pytest.raises(TrackerFailed, match="^quota is used up$"):
            await tracker.send(batch())
    assert await tracker.close() == 0


async def test_keys_of_the_servers_users_do_not_reach_the_tracker(tmp_path: Path) -> None:
    seen = tmp_path / "environment"
    body = f"open({str(seen)!r}, 'w').write(repr(dict(os.environ)))"
    environment = {
        **os.environ,
        "CHOCKSTONE_KEYS": "ann=tml-secret",
        "TINKER_API_KEY": "tml-other",
        "WANDB_API_KEY": "w",
    }
    tracker = TrackerProcess("wandb", tmp_path, command=program(body), environment=environment)

    with pytest.raises(TrackerFailed):
        await tracker.send(batch())

    assert "tml-" not in seen.read_text()
    assert "WANDB_API_KEY" in seen.read_text()


async def test_the_answer_to_a_cancelled_batch_is_not_taken_for_the_next(tmp_path: Path) -> None:
    body = "lines = channel.makefile('rb'); lines.readline(); time.sleep(600)"
    tracker = TrackerProcess("mlflow", tmp_path, answer_seconds=1.0, command=program(body))
    sending = asyncio.create_task(tracker.send(batch()))
    await asyncio.sleep(0.05)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

    with pytest.raises(TrackerFailed, match="did not answer"):  # a new process got it
        await tracker.send(batch())


async def test_a_tracker_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    tracker = TrackerProcess("mlflow", tmp_path, command=("/nonexistent/python",))

    with pytest.raises(TrackerFailed, match="nonexistent"):
        await tracker.send(batch())
