"""Plot: one picture of a run, a panel per measure."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Picture

from benchmarks.distributed import archiving, stepping
from benchmarks.distributed.report import COLUMNS, TITLES
from benchmarks.lifecycle.plot import draw_bars
from benchmarks.server.results import Results

OURS = {*archiving.OURS, stepping.OURS, stepping.OWN}


def draw(results: Results, path: Path) -> None:
    matplotlib.use("Agg")
    picture = Picture(figsize=(20, 4.5), layout="constrained")
    for panel, measure in zip(picture.subplots(1, len(TITLES)).flat, TITLES, strict=True):
        panel.set_title(f"{TITLES[measure]}\n{results.titles.get(measure, '')}", loc="left", fontsize=10)
        draw_bars(panel, results.measured.get(measure, {}), COLUMNS[measure][0], ours=OURS)
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    title = f"Many ranks: medians on {results.environment['machine']}{quick}"
    picture.suptitle(title, fontsize=14, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)
