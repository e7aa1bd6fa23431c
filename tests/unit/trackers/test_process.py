from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chockstone.trackers.process import TrackerService, open_tracker, serve
from chockstone.trackers.tracker import TrackedCheckpoint, TrackedPoint, TrackedRun
from support.trackers import checkpoint, facts, points


class Recorder:
    """A tracker that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.failure: Exception | None = None

    def open(self, run: TrackedRun) -> None:
        self.calls.append(("open", run.run_id))

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("log", [point.position for point in points]))

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        self.calls.append(("saved", [each.step for each in checkpoints]))

    def close(self, run_id: str) -> None:
        self.calls.append(("close", run_id))

    def shut_down(self) -> None:
        self.calls.append(("shut_down", None))


def line(run: TrackedRun, first: int, last: int, *saved: TrackedCheckpoint) -> bytes:
    request = {
        "run": asdict(run),
        "points": [[p.position, p.at, p.step, dict(p.values)] for p in points(first, last)],
        "checkpoints": [[each.path, each.kind, each.step, each.at] for each in saved],
    }
    return json.dumps(request).encode() + b"\n"


def test_a_batch_opens_its_run_and_is_passed_on() -> None:
    tracker = Recorder()
    service = TrackerService(lambda: tracker)

    assert service.answer(line(facts("a"), 1, 3, checkpoint(7))) == b"{}\n"

    assert tracker.calls == [("open", "a"), ("log", [1, 2, 3]), ("saved", [7])]


def test_a_refused_batch_is_an_answer_and_the_next_is_taken() -> None:
    tracker = Recorder()
    tracker.failure = ValueError("no such place " + "x" * 9999)
    service = TrackerService(lambda: tracker)

    answer = json.loads(service.answer(line(facts("a"), 1, 1)))
    tracker.failure = None

    assert answer["error"].startswith("ValueError: no such place x")
    assert len(answer["error"]) <= 500
    assert service.answer(line(facts("a"), 1, 1)) == b"{}\n"


def test_idle_runs_are_closed_and_opened_again() -> None:
    clock = [0.0]
    tracker = Recorder()
    service = TrackerService(lambda: tracker, monotonic=lambda: clock[0])
    service.answer(line(facts("a"), 1, 1))
    clock[0] = 800.0
    service.answer(line(facts("b"), 1, 1))
    clock[0] = 1000.0
    service.tidy()
    service.answer(line(facts("a"), 2, 2))

    assert [call for call in tracker.calls if call[0] != "log"] == [
        ("open", "a"),
        ("open", "b"),
        ("close", "a"),
        ("open", "a"),
    ]


def test_the_runs_that_are_idle_for_longest_are_closed_when_too_many_are_open() -> None:
    tracker = Recorder()
    service = TrackerService(lambda: tracker)
    for number in range(66):
        service.answer(line(facts(f"run-{number}"), 1, 1))

    service.tidy()

    assert [call[1] for call in tracker.calls if call[0] == "close"] == ["run-0", "run-1"]


def test_it_shuts_down_when_the_engine_is_gone() -> None:
    tracker = Recorder()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serving = threading.Thread(target=serve, args=(theirs, TrackerService(lambda: tracker)))
        serving.start()
        ours.sendall(line(facts("a"), 1, 1))
        assert ours.recv(100) == b"{}\n"
        ours.shutdown(socket.SHUT_RDWR)
        serving.join(5)

    assert not serving.is_alive()
    assert tracker.calls[-1] == ("shut_down", None)


def test_an_unknown_tracker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        open_tracker("abacus", tmp_path)


def test_the_real_process_writes_and_ends_with_its_channel(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "chockstone.trackers.process", "tensorboard", str(tmp_path)]
        process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(60)
        ours.sendall(line(facts(), 1, 2))
        assert ours.recv(100) == b"{}\n"
        os.kill(process.pid, signal.SIGINT)  # Ctrl-C is for the server
        ours.sendall(line(facts(), 3, 3))
        assert ours.recv(100) == b"{}\n"
    assert process.wait(10) == 0

    shown = EventAccumulator(str(tmp_path / "tensorboard" / facts().name))
    shown.Reload()
    assert [event.value for event in shown.Scalars("loss")] == [1.0, 2.0, 3.0]
