"""Memory: the growth of the resident memory at its peak, over one step on sequences of several lengths.

Each step is the second of a new process: the first loads code and makes the moments.
"""

from __future__ import annotations

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Rows, Series, reason_of
from benchmarks.models.setup import Setup
from benchmarks.models.training import OURS, PEFT, row

RECOMPUTED = "chockstone, activation checkpointing"
PEFT_RECOMPUTED = "PEFT, gradient checkpointing"
PEAK = "peak_bytes"


def measure_memory(context: Context, setup: Setup) -> Rows:
    context.describe(f"{setup.model.title} model, rank 32, one step in a new process")
    makers = {
        OURS: lambda: setup.own_trainer(activation_checkpointing="off"),
        RECOMPUTED: lambda: setup.own_trainer(activation_checkpointing="on"),
        PEFT: setup.peft_trainer,
        PEFT_RECOMPUTED: lambda: setup.peft_trainer(gradient_checkpointing=True),
    }
    rows: Rows = {}
    for length in setup.scale.lengths:
        for name, make in makers.items():
            context.say(row(length, name))
            rows[row(length, name)] = series = Series()
            try:
                with make() as trainer:
                    series.add(measure_peak(trainer, setup, length))
            except Exception as error:  # recorded: PEFT may need more memory than there is
                series.failure = reason_of(error)
    return rows


def measure_peak(trainer: RemoteObject, setup: Setup, length: int) -> dict[str, float]:
    """Of a batch with sequences of this length."""
    trainer.call("step", sequences=setup.batch(16)[:1])
    answer = trainer.call("step", sequences=setup.batch(length))
    return {PEAK: answer[PEAK], "seconds": answer["seconds"]}
