"""Plot: one picture of a run, a panel per measure."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Picture

from benchmarks.lifecycle.plot import draw_bars
from benchmarks.recovery import journalling, parking, recovering
from benchmarks.recovery.report import COLUMNS, TITLES
from benchmarks.server.results import Results

OURS = {journalling.ALONE, journalling.SYNCED, journalling.ARCHIVED, recovering.OURS, parking.FULL}
PANELS = {"journal": "added", "journal-large": "added", "recovery": "seconds", "parked": "memory"}


def draw(results: Results, path: Path) -> None:
    matplotlib.use("Agg")
    picture = Picture(figsize=(18, 7), layout="constrained")
    for panel, (measure, metric) in zip(picture.subplots(2, 2).flat, PANELS.items(), strict=True):
        panel.set_title(f"{TITLES[measure]}\n{results.titles.get(measure, '')}", loc="left", fontsize=10)
        column = next(column for column in COLUMNS[measure] if column.metric == metric)
        draw_bars(panel, results.measured.get(measure, {}), column, ours=OURS)
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    title = f"Crashes that go unnoticed: medians on {results.environment['machine']}{quick}"
    picture.suptitle(title, fontsize=14, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)
