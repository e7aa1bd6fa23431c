"""Stage: what every measure is given, and how turns are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.free_memory import AsItIs
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds
from benchmarks.server.apart import Apart
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model
from benchmarks.server.scale import Scale


@dataclass(frozen=True, slots=True)
class Stage:
    scale: Scale
    threads: int  # for arithmetic, the server's and the baselines' alike
    directory: Path
    models: Mapping[str, Model]
    server: LiveServer
    bare: Apart  # the baselines, in a process of their own
    say: Callable[[str], None]

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        return run_prepared_rounds(actions, repeats=repeats, memory=AsItIs(), say=self.say)
