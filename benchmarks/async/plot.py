"""Plot: generation around a save on the left, and a panel of bars for each other measure on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.harness.measure import Measure
from benchmarks.harness.plot import OTHER_COLOR, OURS_COLOR, draw_panel, new_picture, save_picture
from benchmarks.harness.results import Results
from benchmarks.harness.rounds import Series

from . import savers
from .scale import F, L
from .setup import Setup
from .timeline import BIN_SECONDS, row_of

TITLE = "Programs that must not stop"
WAYS = {savers.OURS: OURS_COLOR, savers.FAST: OURS_COLOR, savers.INLINE: "#8a3b3b", savers.TORCH: "#8a3b3b"}


def draw(measures: Sequence[Measure[Setup]], results: Results, path: Path) -> None:
    picture = new_picture(results, title=TITLE, size_inches=(22, 12))
    [[left, right]] = picture.subfigures(1, 2, squeeze=False, width_ratios=(1.2, 1))
    lines = results.measured.get(("timeline", ""), {})
    panels = left.subplots(len(WAYS), 2, sharex="col", sharey=True, squeeze=False)
    for row, (way, color) in zip(panels, WAYS.items(), strict=True):
        for panel, state in zip(row, (L, F), strict=True):
            panel.set_title(f"{state}-like state: {way}", loc="left", fontsize=10)
            _draw_line(panel, lines.get(row_of(state, way)), color=color)
    for panel in panels[-1]:
        panel.set_xlabel("seconds from the start of the save")
    panels[0, 0].set_ylim(bottom=0)  # of all: they share it
    barred = [measure for measure in measures if measure.panel is not None and results.rows(measure)]
    for panel, measure in zip(right.subplots(max(1, len(barred)), 1, squeeze=False).flat, barred, strict=False):
        draw_panel(panel, measure, results)
    save_picture(picture, path)


def _draw_line(panel: Axes, series: Series | None, *, color: str) -> None:
    if series is None or series.failure is not None:
        panel.text(0.5, 0.5, "not measured in this run", ha="center", va="center", transform=panel.transAxes)
        return
    [seconds] = series.samples["seconds"]
    panel.axvspan(0, seconds, color=OTHER_COLOR, alpha=0.6, linewidth=0)
    panel.step(series.samples["at"], series.samples["tokens_per_second"], where="post", color=color, linewidth=1.2)
    panel.annotate(f"saved in {seconds:.2f} s", (0, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    panel.set_ylabel(f"tokens/s, {BIN_SECONDS * 1e3:.0f} ms bins", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
