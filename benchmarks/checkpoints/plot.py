"""Plot: one picture of a run, bars per contestant with the limits marked, and the scaling curves."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from benchmarks.checkpoints import ours, restoring, saving, stalling
from benchmarks.checkpoints.report import milliseconds
from benchmarks.checkpoints.results import Measure, Results
from benchmarks.checkpoints.scaling import Axis

OURS, PEER, LIMIT, RESTORE = "#1f6f8b", "#c9cdd2", "#d1495b", "#e0a458"
COLUMNS: dict[Measure, tuple[str, str]] = {
    "save": ("Durable save", saving.LIMIT),
    "stall": ("save() blocks the caller", stalling.LIMIT),
    "restore": ("Restore, cold file", restoring.LIMIT),
}
OFF_THE_SCALE = 3.0  # a bar this many times longer than the next is cut and says so


def draw(results: Results, path: Path) -> None:
    matplotlib.use("Agg")
    picture = Picture(figsize=(21, 10), layout="constrained")
    panels = picture.subplots(2, 4, width_ratios=(1, 1, 1, 0.9))
    for row, state in zip(panels, ("F", "L"), strict=True):
        for panel, measure in zip(row, COLUMNS, strict=False):
            _draw_bars(panel, results, measure, state)
    _draw_curve(panels[0][3], results, "size")
    _draw_curve(panels[1][3], results, "count")
    machine = f"{results.environment['machine']}, {results.environment['filesystem']}"
    machine += f", {results.temperature} free memory"
    quick = " · QUICK RUN, not the published sizes" if results.quick else ""
    picture.suptitle(f"Checkpoints: medians on {machine}{quick}", fontsize=14, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def _draw_bars(panel: Axes, results: Results, measure: Measure, state: str) -> None:
    title, limit_name = COLUMNS[measure]
    facts = results.states.get(state)
    size = "" if facts is None else f"{state}: {facts.size_bytes / 1e6:,.0f} MB in {facts.tensor_count} tensors"
    panel.set_title(f"{title}\n{size}", loc="left", fontsize=11)
    bars = results.medians(measure, state, without=(limit_name,))
    if not bars:
        _leave_empty(panel)
        return
    ordered = sorted(bars, key=lambda name: bars[name], reverse=True)
    lengths = sorted(bars.values())
    cut = lengths[-2] * 1.15 if len(lengths) > 1 and lengths[-1] > OFF_THE_SCALE * lengths[-2] else lengths[-1]
    panel.barh(
        ordered,
        [min(bars[name], cut) for name in ordered],
        color=[OURS if name == ours.NAME else PEER for name in ordered],
        height=0.68,
    )
    for position, name in enumerate(ordered):
        label = milliseconds(bars[name]) + (" (bar cut)" if bars[name] > cut else "")
        inside = bars[name] > cut
        panel.annotate(
            label,
            (min(bars[name], cut), position),
            xytext=(-4 if inside else 4, 0),
            textcoords="offset points",
            va="center",
            ha="right" if inside else "left",
            fontsize=9,
            fontweight="bold" if name == ours.NAME else "normal",
        )
    limit = results.median(measure, state, limit_name)
    if limit is not None:
        panel.axvline(limit, color=LIMIT, linewidth=1.4, linestyle="--")
        label = f"{limit_name.removeprefix('limit: ')}, {milliseconds(limit)}"
        panel.annotate(
            label,
            (limit, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            color=LIMIT,
            fontsize=9,
            va="top",
        )
    panel.set_xlim(0, cut * 1.22)
    panel.set_ylim(-0.6, len(ordered) + 0.1)
    panel.set_xlabel("seconds")
    panel.spines[["top", "right"]].set_visible(False)


def _draw_curve(panel: Axes, results: Results, axis: Axis) -> None:
    title = "Cost against size" if axis == "size" else "Cost against tensor count, 100 MB"
    panel.set_title(f"{ours.NAME}\n{title}", loc="left", fontsize=11)
    divisor = 1e6 if axis == "size" else 1.0
    drawn = False
    for metric, label, color in (("save", "durable save", OURS), ("restore", "verified restore", RESTORE)):
        timed = [
            (point.at / divisor, seconds)
            for point in results.scaling
            if point.axis == axis and (seconds := point.series.median(metric)) is not None
        ]
        if not timed:
            continue
        drawn = True
        positions, seconds_each = zip(*timed, strict=True)
        panel.plot(positions, seconds_each, marker="o", color=color, label=label)
        if metric == "save" and axis == "size":
            largest, longest = timed[-1]
            straight = [longest * position / largest for position in positions]
            panel.plot(positions, straight, color=LIMIT, linewidth=1, linestyle=":", label="a straight line")
    if not drawn:
        _leave_empty(panel)
        return
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("MB" if axis == "size" else "tensors")
    panel.set_ylabel("seconds")
    panel.grid(visible=True, which="major", alpha=0.3)
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)


def _leave_empty(panel: Axes) -> None:
    panel.text(0.5, 0.5, "not measured in this run", ha="center", va="center", color="#888888")
    panel.set_axis_off()
