"""Scale: how large the model and the batches are, and how often each thing is measured."""

from __future__ import annotations

from dataclasses import dataclass

LENGTHS = (128, 512, 2048, 8192)  # tokens of a sequence, of a full run


@dataclass(frozen=True, slots=True)
class Scale:
    parameters: int
    lengths: tuple[int, ...]  # tokens of a sequence, for training and memory
    step_tokens: int  # of a training step, at least; a longer sequence is a step of its own
    recomputed_tokens: int  # the sequence on which activation checkpointing is measured
    mixed_sequences: int  # of the length mixes
    training_rounds: int
    mixed_rounds: int
    recomputing_rounds: int


FULL = Scale(
    parameters=125_000_000,
    lengths=LENGTHS,
    step_tokens=2048,
    recomputed_tokens=4096,
    mixed_sequences=64,
    training_rounds=3,
    mixed_rounds=3,
    recomputing_rounds=3,
)

QUICK = Scale(
    parameters=1_000_000,
    lengths=(128, 512),
    step_tokens=512,
    recomputed_tokens=1024,
    mixed_sequences=32,
    training_rounds=2,
    mixed_rounds=2,
    recomputing_rounds=2,
)
