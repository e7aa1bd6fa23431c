"""Memory: what each further LoRA run adds to the worker, beside what its adapter, gradient and moments take."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

import tinker
from tinker import types

from benchmarks.checkpoints.rounds import Series
from benchmarks.server.client import batch_of, new_run, session, step
from benchmarks.server.models import LARGE
from benchmarks.server.scale import RANK
from benchmarks.server.stage import Stage

FIRST = "worker with one run"
FURTHER = "each further run adds"
DUE = "adapter, gradient and two moments"
BASE = "another base model would add"
COPIES = 4  # weights, gradient, and both moments
FLOAT_BYTES = 4


def measure_memory(stage: Stage) -> dict[str, Series]:
    """Each run is measured with its moments and a gradient in place, and the activations of its passes freed."""
    model, scale = stage.models[LARGE], stage.scale
    batch = batch_of(model.draw(scale.batch_sequences, scale.sequence_tokens // 4 + 1, seed=9))
    rows = {name: Series() for name in (FIRST, FURTHER, DUE, BASE)}
    with session(stage.server.url) as service:
        runs: list[tinker.TrainingClient] = []
        sizes: list[int] = []
        for number in range(scale.further_runs + 2):
            stage.say(f"run {number + 1}")
            runs.append(new_run(service, model.name, seed=number))
            _exercise(runs[-1], batch)
            sizes.append(_settled_bytes(stage))
    rows[FIRST].add({"bytes": float(sizes[0])})
    for before, after in pairwise(sizes):
        rows[FURTHER].add({"bytes": float(after - before)})
    rows[DUE].add({"bytes": float(COPIES * FLOAT_BYTES * model.adapter_parameters(RANK))})
    rows[BASE].add({"bytes": float(FLOAT_BYTES * model.shape.parameters)})
    return rows


def _exercise(run: tinker.TrainingClient, batch: list[types.Datum]) -> None:
    """Several steps, and a gradient that stays."""
    for _ in range(3):
        step(run, batch)
    run.forward_backward(batch, "cross_entropy").result()


def _settled_bytes(stage: Stage) -> int:
    sizes = []
    for _ in range(3):
        time.sleep(0.1)
        sizes.append(stage.server.worker_memory_bytes())
    return int(median(sizes))
