from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from typer.testing import Result

from chockstone.cli.training import run as train_run
from support.cli.training import OWN, SMALL, FakeTrainingServer, run
from support.trainers.fakes import Digits, FakeServer


def test_a_run_that_has_all_its_steps_is_left_alone(server: FakeServer) -> None:
    run(*SMALL)
    calls = len(server.calls)

    result = run(*SMALL)

    assert result.exit_code == 0
    assert "is at step 4; --steps is 4" in result.stdout
    assert "Train more: chockstone train --env digits:make" in result.stdout
    assert "--steps 8" in result.stdout
    assert (len(OWN), len(server.calls)) == (1, calls)  # nothing was started


def test_a_failing_environment_is_shown_with_its_traceback(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object) -> float:
        raise ZeroDivisionError("of my own making")

    environment = Digits()
    environment.judge = judge
    monkeypatch.setitem(sys.modules, "digits", SimpleNamespace(make=lambda: environment))

    result = run(*SMALL)

    assert result.exit_code == 1
    assert "in judge" in result.stderr
    assert result.stderr.endswith("chockstone: training failed: ZeroDivisionError: of my own making\n")
    assert OWN[0].story == ["started", "stopped"]


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_failure_that_is_not_the_users_code_shows_its_traceback_if_asked(server: FakeServer, is_shown: bool) -> None:
    server.fail("optim_step", tinker.TinkerError("the server lost the run"))

    result = run(*SMALL, *(["--debug"] if is_shown else []))

    assert result.exit_code == 1
    assert "chockstone: training failed: TinkerError: the server lost the run" in result.stderr
    assert ("Traceback" in result.stderr) is is_shown


def test_a_server_that_keeps_dying_ends_training(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["the server died with 9 and is started again"])
    is_hopeless = threading.Event()

    def revive() -> str | None:
        if (text := next(said, None)) is None:
            is_hopeless.set()
            raise train_run.CommandFailed("the server died 6 times")
        return text

    class Dying(FakeTrainingServer):
        def __init__(self, *facts: Any, threads: int) -> None:
            super().__init__(*facts, threads=threads)
            self.revive = revive

    monkeypatch.setattr(train_run, "TrainingServer", Dying)
    monkeypatch.setattr(train_run, "_WATCH_SECONDS", 0.01)
    server.in_thread["step"] = lambda: is_hopeless.wait(60)

    result = run(*SMALL)

    assert result.exit_code == 1
    assert "is started again" in result.stderr
    assert "chockstone: training failed: the server died 6 times" in result.stderr


def test_settings_of_another_run_are_refused(server: FakeServer) -> None:
    run(*SMALL)

    result = run(*SMALL, "--steps", "8", "--batch-size", "3")

    assert result.exit_code == 2
    assert "batch_size was 2, is 3" in result.stderr


def test_an_environment_that_cannot_be_loaded_is_shown(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "broken_task.py").write_text("def make():\n    raise LookupError('no data')\n")

    result = run(env="broken_task:make")

    assert result.exit_code == 2
    assert "broken_task.py" in result.stderr
    assert "the environment 'broken_task:make' cannot be loaded: LookupError: no data" in result.stderr


def test_two_cannot_train_in_one_directory(server: FakeServer) -> None:
    inner: list[Result] = []
    server.in_thread["create"] = lambda: inner.append(run(*SMALL))

    run(*SMALL)

    assert inner[0].exit_code == 2
    assert "another `chockstone train` runs in 'chockstone-train'" in inner[0].stderr


def test_a_server_that_is_named_is_used(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def get(path: str) -> dict[str, Any]:
        asked.append(path)
        return {"supported_models": [{"model_name": "Qwen/Qwen3-8B"}]}

    monkeypatch.setattr(train_run, "connect", lambda url, key: SimpleNamespace(get=get))

    result = run(*SMALL, TINKER_BASE_URL="http://gpu:8000", TINKER_API_KEY="tml-ann")

    assert result.exit_code == 0, result.output
    assert OWN == []
    assert asked == ["get_server_capabilities"]
    assert "chockstone serve" not in result.stdout
    assert run(*SMALL, "--model", "other", "--steps", "8", TINKER_BASE_URL="http://gpu:8000").exit_code == 2
    assert asked[1:] == ["healthz"]


def test_wrong_settings_are_told_before_a_model_is_made_or_a_server_asked(tmp_path: Path) -> None:
    result = run("--steps", "0", "--out", str(tmp_path / "out"), env="arithmetic", TINKER_BASE_URL="http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "steps must be a whole number from 1 on" in result.stderr
    assert not (tmp_path / "out").exists()
