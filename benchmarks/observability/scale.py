"""Scale: how long turns are, how full the server is, and how many pages are open."""

from __future__ import annotations

from dataclasses import dataclass

RANK = 32


@dataclass(frozen=True, slots=True)
class Scale:
    sequences: int  # of a training step
    tokens: int  # of each sequence
    steps: int  # in one turn
    rounds: int
    counted_steps: int  # in which the CPU time of each part is counted
    runs: int  # of the full server
    checkpoints: int
    points: int  # in the history of each of the first runs
    paints: int  # rounds of page loads
    questions: int  # to a route in one round
    asks: int  # rounds of questions
    pages: int  # that are open at once
    watch_seconds: float  # in which the server's CPU is counted
    watches: int


FULL = Scale(
    sequences=4,
    tokens=128,
    steps=20,
    rounds=75,
    counted_steps=300,
    runs=1_000,
    checkpoints=10_000,
    points=4_000,
    paints=9,
    questions=200,
    asks=5,
    pages=50,
    watch_seconds=10.0,
    watches=3,
)

QUICK = Scale(
    sequences=4,
    tokens=128,
    steps=6,
    rounds=3,
    counted_steps=30,
    runs=200,
    checkpoints=1_000,
    points=500,
    paints=2,
    questions=20,
    asks=2,
    pages=50,
    watch_seconds=1.0,
    watches=1,
)
