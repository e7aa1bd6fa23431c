"""Scale: how many runs and replicas, and how large requests and results are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    runs: int
    replicas: int
    body_bytes: int  # of a pass
    result_bytes: int


@dataclass(frozen=True, slots=True)
class Scale:
    few: Load
    many: Load
    large: Load
    steps: int  # of each run in a round
    large_steps: int
    rounds: int


SMALL_BODY, SMALL_RESULT = 64 * 20, 64 * 4  # 64 tokens, as in the capacity plan
LARGE_BODY, LARGE_RESULT = 16_384 * 20, 16_384 * 4

FULL = Scale(
    few=Load(16, 1, SMALL_BODY, SMALL_RESULT),
    many=Load(1_000, 100, SMALL_BODY, SMALL_RESULT),
    large=Load(1_000, 100, LARGE_BODY, LARGE_RESULT),
    steps=20,
    large_steps=2,
    rounds=3,
)

QUICK = Scale(
    few=Load(16, 1, SMALL_BODY, SMALL_RESULT),
    many=Load(100, 10, SMALL_BODY, SMALL_RESULT),
    large=Load(100, 10, LARGE_BODY, LARGE_RESULT),
    steps=5,
    large_steps=2,
    rounds=1,
)
