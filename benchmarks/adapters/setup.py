"""Set-up: the training, and the ways of the host that is measured now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.adapters.training import Training, make_training
from benchmarks.harness.context import Context
from benchmarks.harness.free_memory import FreeMemory, free_memory


@dataclass(frozen=True, slots=True)
class Setup:
    training: Training
    digest: str  # of the training as it is saved
    memory: FreeMemory
    repeats: int


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    context.say("filling the training")
    training = make_training(quick=context.quick)
    memory = free_memory(context.temperature, training.size_bytes)
    yield Setup(training, training.digest(), memory, repeats=3 if context.quick else 5)
