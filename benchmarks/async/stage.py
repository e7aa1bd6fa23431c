"""Stage: what every measure is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.free_memory import AsItIs
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model
from chockstone.cli.models.making import make_model

from .loop import Traffic
from .scale import Scale


@dataclass(frozen=True, slots=True)
class Stage:
    measure: str
    scale: Scale
    threads: int
    directory: Path  # of this measure alone, on a disk
    model: Model  # a tiny one
    server: LiveServer  # that serves it
    traffic: Traffic  # to it
    titles: dict[str, str]  # of measures: what they were made on
    say: Callable[[str], None]

    def new_directory(self) -> Path:
        self.directory.mkdir(parents=True)
        return self.directory

    def make_model(self, name: str, parameters: int) -> Model:
        made = make_model(self.directory / "models" / name, architecture="qwen3", parameters=parameters)
        return Model(name, made.directory, made.shape)

    def watched_server(self, models: Iterable[Model]) -> LiveServer:
        """One more, whose event loop is watched more closely."""
        program = [str(Path(__file__).with_name("watched.py"))]
        return LiveServer(models, self.directory / "server", threads=self.threads, program=program)

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        return run_prepared_rounds(actions, repeats=repeats, memory=AsItIs(syncs=True), say=self.say)
