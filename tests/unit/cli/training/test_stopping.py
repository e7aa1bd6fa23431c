from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from chockstone.cli.training import run as train_run
from chockstone.cli.training import stopping as train_stopping
from chockstone.cli.training.report import newest_checkpoint
from support.cli.training import OWN, SMALL, FakeTrainingServer, Task, run
from support.trainers.fakes import FakeServer


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_stops_the_server(server: FakeServer, number: int, code: int) -> None:
    def interrupt() -> None:
        if server.calls.count("step") == 3:
            os.kill(os.getpid(), number)

    server.in_thread["step"] = interrupt
    before = signal.getsignal(number)

    result = run(*SMALL, "--steps", "50", "--save-every", "0")

    assert result.exit_code == code, result.output
    assert OWN[0].story == ["started", "stopped"]
    newest = newest_checkpoint(Path("chockstone-train"))
    assert newest is not None and newest.step >= 3
    assert f"Trained {newest.step} steps of 50" in result.stdout
    assert "Resume: chockstone train --env digits:make" in result.stdout
    assert signal.getsignal(number) == before
    resumed = run(*SMALL, "--steps", str(newest.step + 1), "--save-every", "0")
    assert f"resuming from step {newest.step}" in resumed.stderr


def test_a_second_signal_kills_the_server_and_ends_the_process(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    may_end = threading.Event()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def hang() -> None:
        """The last save, during which the second one comes."""
        os.kill(os.getpid(), signal.SIGINT)
        assert may_end.wait(60)

    def end(code: int) -> None:
        ends.append(code)
        may_end.set()

    monkeypatch.setattr(train_stopping, "_ECHO_SECONDS", 0.0)
    monkeypatch.setattr(train_stopping.os, "_exit", end)
    server.in_thread["step"] = interrupt
    server.in_thread["close"] = hang

    run(*SMALL, "--save-every", "0")

    assert ends == [130]
    assert OWN[0].story == ["started", "killed", "stopped"]


def test_a_signal_while_the_server_starts_ends_the_command(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeTrainingServer):
        def __enter__(self) -> FakeTrainingServer:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal was not answered")

    monkeypatch.setattr(train_run, "TrainingServer", Slow)

    result = run(*SMALL)

    assert result.exit_code == 143
    assert server.calls == []


def test_a_reward_that_hangs_does_not_keep_the_process(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    may_end = threading.Event()

    def hang(*_: object) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        assert may_end.wait(60)
        return 0.0

    def end(code: int) -> None:
        ends.append(code)
        may_end.set()

    environment = Task()
    environment.judge = hang
    monkeypatch.setitem(sys.modules, "digits", SimpleNamespace(make=lambda: environment))
    monkeypatch.setattr(train_run, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(train_run, "exit_now", end)
    monkeypatch.setattr(train_stopping, "_ECHO_SECONDS", 60.0)  # each of the rewards sends one

    result = run(*SMALL)

    assert ends == [130]
    assert "a thread is still busy" in result.stderr
    assert OWN[0].story == ["started", "stopped"]
