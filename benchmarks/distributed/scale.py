"""Scale: how large states, models and batches are, and how often each thing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.context import Context


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


@contextmanager
def set_up(context: Context) -> Iterator[Scale]:
    """Measures share nothing but their scale: each starts processes of its own."""
    yield QUICK if context.quick else FULL
