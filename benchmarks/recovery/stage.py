"""Stage: what every measure is given, and how turns are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.free_memory import AsItIs
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds
from benchmarks.recovery.scale import Scale
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model


@dataclass(frozen=True, slots=True)
class Stage:
    """Each measure starts servers of its own: their settings are what is measured."""

    quick: bool
    scale: Scale
    threads: int
    directory: Path  # of this measure alone, on a disk
    models: Mapping[str, Model]
    say: Callable[[str], None]

    def server(self, model: Model, home: str, *flags: str) -> LiveServer:
        return LiveServer([model], self.directory / home, threads=self.threads, flags=flags)

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        return run_prepared_rounds(actions, repeats=repeats, memory=AsItIs(), say=self.say)
