"""Stage: what every measure is given, and how often it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.free_memory import Temperature, free_memory
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds


@dataclass(frozen=True, slots=True)
class Scale:
    shapes: str  # of the state, see ``states.training_shapes``
    saves: int  # rounds
    loads: int
    parameters: int  # of the model that is trained
    sequences: int  # of its batch
    sequence_tokens: int
    steps: int  # in a turn
    turns: int


FULL = Scale(shapes="F", saves=7, loads=7, parameters=20_000_000, sequences=8, sequence_tokens=128, steps=5, turns=9)
QUICK = Scale(
    shapes="F-quick", saves=2, loads=2, parameters=4_000_000, sequences=4, sequence_tokens=64, steps=3, turns=2
)


@dataclass(frozen=True, slots=True)
class Stage:
    scale: Scale
    directory: Path  # on a disk
    temperature: Temperature  # of the memory that contestants find
    titles: dict[str, str]
    say: Callable[[str], None]

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int, state_bytes: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        memory = free_memory(self.temperature, state_bytes)
        return run_prepared_rounds(actions, repeats=repeats, memory=memory, say=self.say)
