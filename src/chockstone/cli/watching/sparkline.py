"""Sparklines: a curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.-~=+*#"  # for terminals without Unicode


def sparkline(values: Sequence[float], width: int, *, levels: str = BLOCKS) -> str:
    """The curve from the lowest to the highest value, in at most ``width`` characters; each is a mean of neighbours."""
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    means = [_mean(values[len(values) * n // columns : len(values) * (n + 1) // columns]) for n in range(columns)]
    low, high = min(means), max(means)
    if high == low:
        return levels[0] * columns
    top = len(levels) - 1
    return "".join(levels[round((mean - low) / (high - low) * top)] for mean in means)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
