"""Plot: one picture of a run, a panel per measure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.harness.measure import Column, Measure, Setup
from benchmarks.harness.results import Results
from benchmarks.harness.rounds import Rows

OURS_COLOR, OTHER_COLOR, LIMIT_COLOR = "#1f6f8b", "#c9cdd2", "#d1495b"
TITLE_CHARACTERS = 60  # in one line
OFF_THE_SCALE = 3.0  # a ranked bar that is this many times longer than the next is cut and says so


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar for each row that has the metric, ours in colour.

    ``is_ranked`` sorts them and cuts one that is far longer than all others. ``limit`` is a row to draw as a line.
    """

    metric: str
    is_ranked: bool = False
    limit: str | None = None

    def draw(self, axes: Axes, rows: Rows, columns: Sequence[Column], *, ours: Collection[str]) -> None:
        column = next(column for column in columns if column.metric == self.metric)
        medians = {name: series.median(self.metric) for name, series in reversed(rows.items())}
        bars = {name: value for name, value in medians.items() if value is not None and name != self.limit}
        if not bars:
            leave_empty(axes)
            return
        if self.is_ranked:
            bars = dict(sorted(bars.items(), key=lambda bar: bar[1], reverse=True))
        longest = self._longest(sorted(bars.values()))
        colors = [OURS_COLOR if name in ours else OTHER_COLOR for name in bars]
        axes.barh(list(bars), [min(value, longest) for value in bars.values()], color=colors, height=0.7)
        for position, (name, value) in enumerate(bars.items()):
            is_cut = value > longest
            axes.annotate(
                column.show(value) + (" (bar cut)" if is_cut else ""),
                (max(0.0, min(value, longest)), position),
                xytext=(-4 if is_cut else 4, 0),
                textcoords="offset points",
                va="center",
                ha="right" if is_cut else "left",
                fontsize=9,
                fontweight="bold" if name in ours else "normal",
            )
        if self.limit is not None and (limit := medians.get(self.limit)) is not None:
            _draw_limit(axes, limit, f"{self.limit.removeprefix('limit: ')}, {column.show(limit)}")
        axes.set_xlim(min(0, *bars.values()), longest * 1.25 or 1)
        axes.set_ylim(-0.6, len(bars) + (0.1 if self.limit else -0.4))
        axes.set_xticks([])
        axes.set_xlabel(column.heading)
        axes.spines[["top", "right", "bottom"]].set_visible(False)

    def _longest(self, lengths: Sequence[float]) -> float:
        is_outlier = self.is_ranked and len(lengths) > 1 and lengths[-1] > OFF_THE_SCALE * lengths[-2]
        return max(0.0, lengths[-2] * 1.15 if is_outlier else lengths[-1])


def draw_grid(
    measures: Sequence[Sequence[Measure[Setup]]], results: Results, path: Path, *, title: str, width_inches: float
) -> None:
    """Rows of panels, one for each measure."""
    columns = max(len(row) for row in measures)
    picture = new_picture(results, title=title, size_inches=(width_inches, 4.6 * len(measures)))
    panels = picture.subplots(len(measures), columns, squeeze=False)
    for panel_row, row in zip(panels, measures, strict=True):
        for panel in panel_row[len(row) :]:
            panel.set_axis_off()
        for panel, measure in zip(panel_row, row, strict=False):
            draw_panel(panel, measure, results)
    save_picture(picture, path)


def new_picture(results: Results, *, title: str, size_inches: tuple[float, float]) -> Picture:
    matplotlib.use("Agg")
    picture = Picture(figsize=size_inches, layout="constrained")
    machine = f"{results.environment['machine']}, {results.environment['filesystem']}"
    memory = "" if results.temperature is None else f", {results.temperature} free memory"
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    picture.suptitle(f"{title}: medians on {machine}{memory}{quick}", fontsize=14, x=0.01, ha="left")
    return picture


def draw_panel(axes: Axes, measure: Measure[Setup], results: Results) -> None:
    assert measure.panel is not None, f"{measure.label!r} has no panel"
    lines = (measure.title, results.titles.get(measure.label, ""))
    axes.set_title("\n".join(textwrap.fill(line, TITLE_CHARACTERS) for line in lines), loc="left", fontsize=10)
    rows = results.rows(measure)
    if rows:
        measure.panel.draw(axes, rows, measure.columns, ours=measure.ours)
    else:
        leave_empty(axes)


def save_picture(picture: Picture, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=100)


def leave_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured in this run", ha="center", va="center", color="#888888", transform=axes.transAxes)
    axes.set_axis_off()


def _draw_limit(axes: Axes, limit: float, label: str) -> None:
    axes.axvline(limit, color=LIMIT_COLOR, linewidth=1.4, linestyle="--")
    axes.annotate(
        label,
        (limit, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, -3),
        textcoords="offset points",
        color=LIMIT_COLOR,
        fontsize=9,
        va="top",
    )
