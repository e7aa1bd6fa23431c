"""Set-up: the model that all measures train, and trainers in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.live.models import Model, new_model
from benchmarks.models.mixes import Sequence, uniform
from benchmarks.models.scale import FULL, QUICK, Scale

LOSS_TOLERANCE = 1e-4  # relative, between two trainers that do the same work


@dataclass(frozen=True, slots=True)
class Setup:
    scale: Scale
    model: Model
    threads: int

    def own_trainer(self, **options: Any) -> RemoteObject:  # Any: of the class
        """An object of ``trainers.OwnTrainer``."""
        return self.remote("benchmarks.models.trainers", "OwnTrainer", **options)

    def peft_trainer(self, **options: Any) -> RemoteObject:  # Any: of the class
        """An object of ``trainers.PeftTrainer``."""
        return self.remote("benchmarks.models.trainers", "PeftTrainer", **options)

    def remote(self, module: str, name: str, **options: Any) -> RemoteObject:  # Any: of the class
        """An object with the model, in a process of its own."""
        return RemoteObject(module, name, directory=self.model.directory, threads=self.threads, **options)

    def batch(self, length: int, *, seed: int = 3) -> list[Sequence]:
        """As many sequences of this length as make a step."""
        count = max(1, self.scale.step_tokens // length)
        return uniform(count, length, vocab_size=self.model.shape.vocab_size, seed=seed)


def count_tokens(sequences: list[Sequence]) -> int:
    return sum(each.positions for each in sequences)


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    scale = QUICK if context.quick else FULL
    context.say("making the model")
    model = new_model("model", context.directory / "models", parameters=scale.parameters)
    yield Setup(scale, model, threads=context.threads)
