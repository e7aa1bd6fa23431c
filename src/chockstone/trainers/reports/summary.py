"""Summaries: what a step's concurrent tasks measured, as one flat record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chockstone.checkpoints.runtime.watchdog import Stalls
from chockstone.trainers.reports.collector import Measure
from chockstone.trainers.reports.reports import StepRecord
from chockstone.trainers.rollouts.rollouts import RolloutGroup


def sample_rows(
    groups: Sequence[RolloutGroup], advantages: Sequence[Sequence[float]], steps_before: int
) -> list[dict[str, Any]]:
    """The ledger of a step: every sample that it trained on, once."""
    return [
        {
            "sample_id": group.sample_id(number),
            "problem_id": group.problem_id,
            "epoch": group.draw.epoch,
            "version": group.version,
            "staleness": steps_before - group.version,
            "reward": sample.reward,
            "advantage": advantage,
            "tokens": len(sample.tokens),
            "is_truncated": sample.is_truncated,
        }
        for group, of_group in zip(groups, advantages, strict=True)
        for number, (sample, advantage) in enumerate(zip(group.samples, of_group, strict=True))
    ]


def step_metrics(record: StepRecord, drained: Mapping[str, Measure], stalls: Stalls, seconds: float) -> StepRecord:
    """``record`` with what was measured since the one before. ``seconds``: how long that was."""
    staleness = [row["staleness"] for row in record.samples]
    metrics = dict(record.metrics)
    metrics["staleness/mean"] = sum(staleness) / len(staleness)
    metrics["staleness/max"] = float(max(staleness))
    metrics["samples/truncated"] = float(sum(row["is_truncated"] for row in record.samples))
    for name, measure in drained.items():
        metrics[name] = measure.total
        if name.startswith("time/") and measure.count > 1:
            metrics[f"{name}/mean"] = measure.mean
            metrics[f"{name}/max"] = measure.most
    metrics["tokens/per_second"] = metrics.get("tokens/generated", 0.0) / seconds
    metrics["time/step"] = seconds
    metrics["loop/stall_p99"] = stalls.p99_seconds
    metrics["loop/stall_max"] = stalls.max_seconds
    return replace(record, metrics=metrics)
