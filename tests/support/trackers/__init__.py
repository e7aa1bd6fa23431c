"""Runs, points and checkpoints for tests of experiment trackers."""

from __future__ import annotations

from typing import Any

from chockstone.trackers.tracker import TrackedCheckpoint, TrackedPoint, TrackedRun

RUN_ID = "6f1c2d3e-0000-4000-8000-000000000000:train:0"


def facts(run_id: str = RUN_ID, **others: Any) -> TrackedRun:
    ordinary = {
        "owner": "ann",
        "base_model": "Qwen/Qwen3-8B",
        "rank": 8,
        "created_at": 1_800_000_000.0,
        "learning_rate": 1e-4,
        "metadata": {"task": "sums"},
    }
    return TrackedRun(run_id=run_id, **{**ordinary, **others})


def points(first: int, last: int) -> list[TrackedPoint]:
    """One for each position; the loss is the position, the step half of it."""
    return [
        TrackedPoint(position, 1_800_000_000.0 + position, position // 2, {"loss": float(position), "loss:sum": 1.0})
        for position in range(first, last + 1)
    ]


def checkpoint(step: int, kind: str = "weights") -> TrackedCheckpoint:
    return TrackedCheckpoint(f"tinker://{RUN_ID}/{kind}/step-{step}", kind, step, 1_800_000_000.0 + step)
