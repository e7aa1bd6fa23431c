"""Activation checkpointing: what it saves of the peak memory of a step, and what it costs in time."""

from __future__ import annotations

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.models.memory import PEAK, measure_peak
from benchmarks.models.setup import Setup

KEPT, RECOMPUTED = "activations are kept", "activations are computed again"
SHORT = "activations are kept, an eighth of the tokens"


def measure_checkpointing(context: Context, setup: Setup) -> Rows:
    """A step in a new process each, so that the peak of one does not hide that of another."""
    tokens = setup.scale.recomputed_tokens
    context.describe(f"{setup.model.title} model, rank 32, one sequence of {tokens:,} tokens")

    def turn(mode: str, length: int) -> Metrics:
        with setup.own_trainer(activation_checkpointing=mode) as trainer:
            answer = measure_peak(trainer, setup, length)
            return {PEAK: answer[PEAK], "seconds": answer["seconds"]}

    turns = {
        KEPT: lambda: turn("off", tokens),
        RECOMPUTED: lambda: turn("on", tokens),
        SHORT: lambda: turn("off", tokens // 8),
    }
    return context.run_rounds(turns, repeats=setup.scale.recomputing_rounds)
