"""Plan: the peak of a step that a memory plan predicts from shapes alone, against the measured one."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series, reason_of
from benchmarks.models.memory import PEAK, measure_peak
from benchmarks.models.setup import Setup
from chockstone.backends.run_spec import Recomputed

PREDICTED = "predicted_bytes"
SHARE = "predicted_share"  # of the measured peak
MODES = {"off": "kept", "on": "recomputed"}
RECOMPUTED: dict[str, Recomputed] = {"off": "none", "on": "most"}


def row(length: int, mode: str) -> str:
    return f"{length:,} tokens, {MODES[mode]}"


def measure_plan(context: Context, setup: Setup) -> Rows:
    context.describe(f"{setup.model.title} model, rank 32, one step in a new process")
    rows: Rows = {}
    for length in setup.scale.lengths:
        for mode in MODES:
            context.say(row(length, mode))
            rows[row(length, mode)] = series = Series()
            try:
                series.add(_compare(setup, length, mode))
            except Exception as error:  # recorded: a long step may need more memory than there is
                series.failure = reason_of(error)
    return rows


def _compare(setup: Setup, length: int, mode: Any) -> dict[str, float]:  # Any: a mode of activation checkpointing
    with setup.remote("benchmarks.models.planners", "StepPlanner") as planner:
        predicted = float(planner.call("predict", length=length, recomputed=RECOMPUTED[mode]))
    with setup.own_trainer(activation_checkpointing=mode) as trainer:
        measured = measure_peak(trainer, setup, length)
    return {PREDICTED: predicted, PEAK: measured[PEAK], SHARE: predicted / measured[PEAK]}
