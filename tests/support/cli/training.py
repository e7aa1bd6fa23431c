"""`chockstone train` with a server in memory and an environment of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.settings.values import ModelSetting
from support.trainers.fakes import Digits

SMALL = ["--steps", "4", "--batch-size", "2", "--group-size", "2", "--max-tokens", "4", "--save-every", "2"]


class Task(Digits):
    """In a file of its own: not where the server is."""


class FakeTrainingServer:
    """Of the kind that is started and stopped, and nothing else."""

    def __init__(self, model: ModelSetting, home: Path, *, threads: int) -> None:
        self.model = model
        self.data = home / "data"
        self.url = "http://127.0.0.1:1"
        self.story: list[str] = []
        self.revive: Callable[[], str | None] = lambda: None
        self.kill = lambda: self.story.append("killed")
        OWN.append(self)

    def __enter__(self) -> FakeTrainingServer:
        self.story.append("started")
        return self

    def __exit__(self, *_: object) -> None:
        self.story.append("stopped")


OWN: list[FakeTrainingServer] = []


def run(*words: str, env: str = "digits:make", **environment: str) -> Result:
    return CliRunner().invoke(app, ["train", "--env", env, *words], catch_exceptions=False, env=environment)
