"""Plot: one picture of a run: what generation did around a save, and a panel of bars for each other measure."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.checkpoints.rounds import Series
from benchmarks.lifecycle.plot import OTHER, OURS_COLOR, draw_bars
from benchmarks.server.results import Results

from . import overlapping, savers, stalling
from .report import COLUMNS, TITLES
from .scale import F, L
from .timeline import BIN_SECONDS, row_of

WAYS = (savers.OURS, savers.FAST, savers.INLINE, savers.TORCH)
OURS = {
    savers.OURS,
    savers.FAST,
    *(stalling.row_of(state, act) for state in (L, F) for act in (stalling.SAVE, stalling.EXPORT, stalling.LOAD)),
    *(overlapping.row_of(kind, "one step off") for kind in (overlapping.FAST, overlapping.SLOW)),
}
BARS = {
    "tokens-L": "share",
    "tokens-F": "share",
    "trainer-loop": "p99",
    "server-loop": "p99",
    "one-step-off": "seconds",
}


def draw(results: Results, path: Path) -> None:
    matplotlib.use("Agg")
    picture = Picture(figsize=(22, 12), layout="constrained")
    [[timelines, bars]] = picture.subfigures(1, 2, squeeze=False, width_ratios=(1.2, 1))
    lines = results.measured.get("timeline", {})
    panels = timelines.subplots(len(WAYS), 2, sharex="col", sharey=True, squeeze=False)
    for row, way in zip(panels, WAYS, strict=True):
        for panel, state in zip(row, (L, F), strict=True):
            panel.set_title(f"{state}-like state: {way}", loc="left", fontsize=10)
            _draw_line(panel, lines.get(row_of(state, way)), color=OURS_COLOR if way in OURS else "#8a3b3b")
    for panel in panels[-1]:
        panel.set_xlabel("seconds from the start of the save")
    panels[0, 0].set_ylim(bottom=0)  # of all: they share it
    measured = [measure for measure in BARS if measure in results.measured]
    for panel, measure in zip(bars.subplots(max(1, len(measured)), 1, squeeze=False).flat, measured, strict=False):
        panel.set_title(f"{TITLES[measure]}\n{results.titles.get(measure, '')}", loc="left", fontsize=10)
        column = next(column for column in COLUMNS[measure] if column.metric == BARS[measure])
        draw_bars(panel, results.measured.get(measure, {}), column, ours=OURS)
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    title = f"Programs that must not stop: medians on {results.environment['machine']}{quick}"
    picture.suptitle(title, fontsize=14, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=90)


def _draw_line(panel: Axes, series: Series | None, *, color: str) -> None:
    if series is None or series.failure is not None:
        panel.text(0.5, 0.5, "not measured in this run", ha="center", va="center", transform=panel.transAxes)
        return
    [seconds] = series.samples["seconds"]
    panel.axvspan(0, seconds, color=OTHER, alpha=0.6, linewidth=0)
    panel.step(series.samples["at"], series.samples["tokens_per_second"], where="post", color=color, linewidth=1.2)
    panel.annotate(f"saved in {seconds:.2f} s", (0, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    panel.set_ylabel(f"tokens/s, {BIN_SECONDS * 1e3:.0f} ms bins", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
