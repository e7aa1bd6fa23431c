"""Plot: one picture of a run, a panel per measure, ours beside its baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.checkpoints.rounds import Series
from benchmarks.lifecycle import deleting, download, listing, saving
from benchmarks.lifecycle.report import COLUMNS, TITLES
from benchmarks.server.report import Column
from benchmarks.server.results import Results

OURS_COLOR, OTHER = "#1f6f8b", "#c9cdd2"
OURS = {listing.FIRST, deleting.BULK, download.OURS, *saving.OURS.values()}


def draw(results: Results, path: Path) -> None:
    matplotlib.use("Agg")
    picture = Picture(figsize=(18, 7), layout="constrained")
    for panel, measure in zip(picture.subplots(2, 2).flat, TITLES, strict=True):
        panel.set_title(f"{TITLES[measure]}\n{results.titles.get(measure, '')}", loc="left", fontsize=10)
        draw_bars(panel, results.measured.get(measure, {}), COLUMNS[measure][0], ours=OURS)
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    title = f"The life of a checkpoint: medians on {results.environment['machine']}{quick}"
    picture.suptitle(title, fontsize=14, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def draw_bars(panel: Axes, rows: Mapping[str, Series], column: Column, *, ours: Collection[str]) -> None:
    """One bar for each row that has the column's metric, ours in colour."""
    medians = {name: series.median(column.metric) for name, series in rows.items()}
    bars = {name: value for name, value in reversed(medians.items()) if value is not None}
    if not bars:
        panel.text(0.5, 0.5, "not measured in this run", ha="center", va="center", color="#888888")
        panel.set_axis_off()
        return
    panel.barh(list(bars), list(bars.values()), color=[OURS_COLOR if name in ours else OTHER for name in bars])
    for position, value in enumerate(bars.values()):
        panel.annotate(
            column.show(value), (value, position), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    panel.set_xlim(0, max(bars.values()) * 1.25)
    panel.set_xticks([])
    panel.set_xlabel(column.heading)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
