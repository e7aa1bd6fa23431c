"""Planners: predict the memory of steps from the shapes of a model, in a process of their own.

See ``benchmarks/harness/remote.py``.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.models.trainers import RANK
from chockstone.backends.planning.outline import ModelOutline
from chockstone.backends.run_spec import Recomputed, RunSpec
from chockstone.backends.training.micro_batches import TOKENS_ON_CPU


class StepPlanner:
    def __init__(self, *, directory: Path, threads: int) -> None:
        del threads  # nothing is computed
        self._outline = ModelOutline(Path(directory), dtype="auto", device="cpu")
        self._run = self._outline.make_run(RunSpec(rank=RANK, seed=0, train_unembed=False))

    def predict(self, *, length: int, recomputed: Recomputed) -> int:
        """The most that a step on sequences of this length takes, beyond what the run holds before it."""
        sequences = max(1, TOKENS_ON_CPU // length)
        return self._outline.pass_bytes(self._run, sequences=sequences, tokens=length, recomputed=recomputed)
