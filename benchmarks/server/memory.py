"""Memory: what each further LoRA run adds to the worker, beside what its adapter, gradient and moments take."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

import tinker
from tinker import types

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series
from benchmarks.live.client import RANK, batch_of, new_run, session, step
from benchmarks.server.scale import LARGE
from benchmarks.server.setup import Setup

FIRST = "worker with one run"
FURTHER = "each further run adds"
DUE = "adapter, gradient and two moments"
BASE = "another base model would add"
COPIES = 4  # weights, gradient, and both moments
FLOAT_BYTES = 4


def measure_memory(context: Context, setup: Setup) -> Rows:
    """Each run is measured with its moments and a gradient in place, and the activations of its passes freed."""
    model, scale = setup.models[LARGE], setup.scale
    batch = batch_of(model.draw(scale.batch_sequences, scale.sequence_tokens // 4 + 1, seed=9))
    context.describe(f"{model.title} model, rank {RANK}")
    rows = {name: Series() for name in (FIRST, FURTHER, DUE, BASE)}
    with session(setup.server.url) as service:
        runs: list[tinker.TrainingClient] = []
        sizes: list[int] = []
        for number in range(scale.further_runs + 2):
            context.say(f"run {number + 1}")
            runs.append(new_run(service, model.name, seed=number))
            _exercise(runs[-1], batch)
            sizes.append(_settled_bytes(setup))
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


def _settled_bytes(setup: Setup) -> int:
    sizes = []
    for _ in range(3):
        time.sleep(0.1)
        sizes.append(setup.server.worker_memory_bytes())
    return int(median(sizes))
