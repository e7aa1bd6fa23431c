from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.settings.values import ModelSetting
from chockstone.cli.training import run as train_run
from chockstone.cli.training import stopping as train_stopping
from chockstone.cli.training.report import RecordedRun, newest_checkpoint, sparkline
from chockstone.cli.training.server import TrainingServer, TrainingServerFailed
from support.trainers.fakes import Digits, FakeServer

SMALL = ["--steps", "4", "--batch-size", "2", "--group-size", "2", "--max-tokens", "4", "--save-every", "2"]


class Task(Digits):
    """In a file of its own: not where the server is."""


class FakeOwnServer:
    """Of the kind that is started and stopped, and nothing else."""

    def __init__(self, model: ModelSetting, home: Path, *, threads: int) -> None:
        self.model = model
        self.data = home / "data"
        self.url = "http://127.0.0.1:1"
        self.story: list[str] = []
        self.revive: Callable[[], str | None] = lambda: None
        self.kill = lambda: self.story.append("killed")
        OWN.append(self)

    def __enter__(self) -> FakeOwnServer:
        self.story.append("started")
        return self

    def __exit__(self, *_: object) -> None:
        self.story.append("stopped")


OWN: list[FakeOwnServer] = []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """In an empty directory, beside an environment ``digits:make``, with a server in memory."""
    OWN.clear()
    fake = FakeServer()
    fake.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(train_run, "TrainingServer", FakeOwnServer)
    monkeypatch.setitem(sys.modules, "digits", SimpleNamespace(make=Task))
    return fake


def run(*words: str, env: str = "digits:make", **environment: str) -> Result:
    return CliRunner().invoke(app, ["train", "--env", env, *words], catch_exceptions=False, env=environment)


def test_one_command_trains_saves_and_tells_how_it_went(server: FakeServer, tmp_path: Path) -> None:
    result = run(*SMALL, "--evaluate-every", "2", "--plot", "shown.svg")

    assert result.exit_code == 0, result.output
    assert OWN[0].story == ["started", "stopped"]
    assert OWN[0].model == ModelSetting("tiny", Path("chockstone-train/model"))
    out = tmp_path / "chockstone-train"
    left = {path.name for path in out.iterdir()}
    assert left == {"metrics.jsonl", "samples.jsonl", "events.jsonl", "rewards.svg", "tensorboard", "store", "model"}
    assert (tmp_path / "shown.svg").read_bytes() == (out / "rewards.svg").read_bytes()
    said = result.stdout
    assert "Trained 4 steps of 4 on 16 samples" in said
    assert re.search(r"reward +\d\.\d{3} → \d\.\d{3}  [▁-█]{4}  best", said)
    assert re.search(r"evaluation +\d\.\d{3} at step 4, on 2 problems", said)
    assert re.search(r"saves +2 in the background, \d\.\d to \d\.\d s each", said)
    assert "state       tinker://run-1/weights/step-00000004" in said
    assert "create_sampling_client(model_path='tinker://run-1/sampler_weights/step-00000004')" in said
    assert "chockstone serve --model tiny=chockstone-train/model --data chockstone-train/server/data" in said


def test_the_command_it_names_trains_on(server: FakeServer, tmp_path: Path) -> None:
    first = run(*SMALL, "--no-tensorboard", "--export", "sampler", "--export", "hf", "--key", "tml-secret")

    [line] = [line for line in first.stdout.splitlines() if line.startswith("Train on: chockstone train ")]
    assert "tml-secret" not in line
    again = CliRunner().invoke(app, line.removeprefix("Train on: chockstone ").split(), catch_exceptions=False)

    assert again.exit_code == 0, again.output
    assert "resuming from step 4" in again.stderr
    assert "Trained 8 steps of 8" in again.stdout
    rows = [json.loads(row) for row in (tmp_path / "chockstone-train/samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [step for step in range(1, 9) for _ in range(4)]
    assert not (tmp_path / "chockstone-train/tensorboard").exists()


def test_a_run_that_has_all_its_steps_is_left_alone(server: FakeServer) -> None:
    run(*SMALL)
    calls = len(server.calls)

    result = run(*SMALL)

    assert result.exit_code == 0
    assert "is at step 4, and 4 were asked for" in result.stdout
    assert "Train on: chockstone train --env digits:make" in result.stdout
    assert "--steps 8" in result.stdout
    assert (len(OWN), len(server.calls)) == (1, calls)  # nothing was started


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
    assert "Go on: chockstone train --env digits:make" in result.stdout
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
    class Slow(FakeOwnServer):
        def __enter__(self) -> FakeOwnServer:
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


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no model $3 >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with pytest.raises(TrainingServerFailed, match="did not start.*\nno model [0-9]+$"):
        TrainingServer(ModelSetting("tiny", tmp_path), tmp_path / "home", threads=1).__enter__()


def test_a_server_is_revived_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho TINKER_BASE_URL=http://127.0.0.1:7\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with TrainingServer(ModelSetting("tiny", tmp_path), tmp_path / "home", threads=1) as own:
        assert own.url == "http://127.0.0.1:7"
        assert own.revive() is None
        for _ in range(5):
            own.kill()
            assert own.revive() == "the server died with -9 and is started again; training continues when it answers"
        own.kill()
        with pytest.raises(TrainingServerFailed, match="the server died 6 times, the last time with -9"):
            own.revive()


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

    class Dying(FakeOwnServer):
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "nothing"], "there is no environment 'nothing'"),
        (["--group-size", "1"], "group_size must be a whole number from 2 on"),
        (["--export", "gguf"], "exports can be sampler and hf"),
        (["--plot", "x.png"], "must end in '.svg'"),
        (["--model", "./nowhere"], "there is no directory"),
        (["--model", "./tiny", "--server", "http://127.0.0.1:1"], "unset TINKER_BASE_URL"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_started(
    server: FakeServer, words: list[str], said: str
) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert said in result.stderr
    assert (OWN, server.calls) == ([], [])


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


def test_without_the_sdk_it_says_what_to_install(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.cli.commands.train.find_spec", lambda _: None)

    result = run()

    assert result.exit_code == 2
    assert "pip install 'chockstone[train]'" in result.stderr


def test_a_sparkline_has_a_bar_for_each_share() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([0.5]) == "█"
    assert len(sparkline([float(number) for number in range(1000)])) == 40


def test_a_story_adds_up_what_some_steps_lack() -> None:
    story = RecordedRun([{"time/save": 1.0}, {"other": 5.0}, {"time/save": 2.0}], {}, {})

    assert (story.total("time/save"), story.most("time/save")) == (3.0, 2.0)


def test_wrong_settings_are_told_before_a_model_is_made_or_a_server_asked(tmp_path: Path) -> None:
    result = run("--steps", "0", "--out", str(tmp_path / "out"), env="arithmetic", TINKER_BASE_URL="http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "steps must be a whole number from 1 on" in result.stderr
    assert not (tmp_path / "out").exists()
