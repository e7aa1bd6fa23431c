"""Scale: how large models and batches are, how many runs are parked, and how often each thing is measured."""

from __future__ import annotations

from dataclasses import dataclass

SMALL, LARGE = "small", "large"  # models
REPLAYED_STEPS = 20
PARKED_RANK = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What a script trains, a step at a time."""

    parameters: int
    sequences: int
    tokens: int  # of each sequence
    steps: int  # in one turn
    rounds: int

    @property
    def batch(self) -> str:
        return f"{self.sequences} × {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Scale:
    """By default a recovery archive is taken every 200 steps or 15 seconds: a full turn has at least one."""

    small: Load
    large: Load  # also of the run that is recovered
    recoveries: int
    parked: int
    starts: int


FULL = Scale(
    small=Load(parameters=1_000_000, sequences=4, tokens=128, steps=250, rounds=9),
    large=Load(parameters=100_000_000, sequences=1, tokens=128, steps=20, rounds=4),
    recoveries=3,
    parked=1_000,
    starts=5,
)

QUICK = Scale(
    small=Load(parameters=1_000_000, sequences=4, tokens=128, steps=20, rounds=3),
    large=Load(parameters=1_000_000, sequences=1, tokens=128, steps=0, rounds=0),
    recoveries=1,
    parked=30,
    starts=1,
)
