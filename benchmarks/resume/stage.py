"""Stage: what every measure is given, and how often it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.free_memory import AsItIs
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds
from benchmarks.resume.loopback import Loopback


@dataclass(frozen=True, slots=True)
class Scale:
    attempts: int
    walks: int  # rounds
    saves: int
    keeping: bool  # whether saves with retention are measured, too
    restores: int
    resumed: int  # attempts that each resume and save


FULL = Scale(attempts=100, walks=5, saves=15, keeping=True, restores=9, resumed=40)
QUICK = Scale(attempts=100, walks=1, saves=2, keeping=False, restores=1, resumed=8)


@dataclass(frozen=True, slots=True)
class Stage:
    scale: Scale
    directory: Path  # on a disk
    s3: Loopback
    say: Callable[[str], None]

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        return run_prepared_rounds(actions, repeats=repeats, memory=AsItIs(), say=self.say)
