"""Sparklines: the loss of a run as a small line, kept until the run has trained further."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chockstone.engine.history.step_history import StepHistory

WIDTH: Final = 100
HEIGHT: Final = 28
_POINTS: Final = 48
_KEPT_SECONDS: Final = 10.0  # reading a history costs more than showing a line that is seconds old
_MOST_KEPT: Final = 512
_LOSS: Final = "loss"


@dataclass(frozen=True, slots=True)
class LossLine:
    points: str  # of an SVG polyline; empty while there are fewer than two losses
    last: float | None  # mean over the weighted tokens


@dataclass(frozen=True, slots=True)
class _Kept:
    line: LossLine
    step: int | None
    at: float


class Sparklines:
    def __init__(self, history: StepHistory, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._history = history
        self._monotonic = monotonic
        self._lines: dict[str, _Kept] = {}

    async def of(self, run_id: str, *, step: int | None) -> LossLine:
        now = self._monotonic()
        kept = self._lines.pop(run_id, None)
        if kept is None or (kept.step != step and now - kept.at > _KEPT_SECONDS):
            page = await self._history.read(run_id, names=frozenset({_LOSS}), max_points=_POINTS)
            losses = [point.values[_LOSS] for point in page.points if _LOSS in point.values]
            kept = _Kept(LossLine(draw(losses), losses[-1] if losses else None), step, now)
        self._lines[run_id] = kept  # the newest last
        if len(self._lines) > _MOST_KEPT:
            del self._lines[next(iter(self._lines))]
        return kept.line


def draw(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    across, margin = WIDTH / (len(values) - 1), 2
    return " ".join(
        f"{index * across:.1f},{margin + (HEIGHT - 2 * margin) * (high - value) / span:.1f}"
        for index, value in enumerate(values)
    )
