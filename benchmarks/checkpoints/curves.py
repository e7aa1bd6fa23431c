"""Curves: seconds against the size or the number of tensors of a state, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from benchmarks.harness.measure import Column
from benchmarks.harness.plot import LIMIT_COLOR, OURS_COLOR, leave_empty
from benchmarks.harness.rounds import Rows

RESTORE_COLOR = "#e0a458"
COLORS = {"save": OURS_COLOR, "restore": RESTORE_COLOR}


@dataclass(frozen=True, slots=True)
class Curves:
    """One line for saves and one for restores. Each row is a point, whose place is its metric ``at``."""

    label: str  # of the x axis
    divisor: float = 1.0
    straight: bool = False  # whether a straight line through the last save is drawn, too

    def draw(self, axes: Axes, rows: Rows, columns: Sequence[Column], *, ours: Collection[str]) -> None:  # noqa: ARG002
        headings = {column.metric: column.heading for column in columns}
        for metric, color in COLORS.items():
            points = [
                (at / self.divisor, seconds)
                for series in rows.values()
                if (at := series.median("at")) is not None and (seconds := series.median(metric)) is not None
            ]
            if not points:
                leave_empty(axes)
                return
            places, lasting = zip(*points, strict=True)
            axes.plot(places, lasting, marker="o", color=color, label=headings[metric])
            if metric == "save" and self.straight:
                largest, longest = points[-1]
                line = [longest * place / largest for place in places]
                axes.plot(places, line, color=LIMIT_COLOR, linewidth=1, linestyle=":", label="a straight line")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(self.label)
        axes.set_ylabel("seconds")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
