"""Plot the rewards of a run over its steps as an SVG file, with matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from chockstone.extras import require
from chockstone.trainers.reports.jsonl import EVENTS, read_rows
from chockstone.trainers.reports.reports import read_saved_text

METRIC: Final = "reward/mean"
REWARD, SMOOTH, EVALUATION, SAVE = "#9ec5f4", "#123a6b", "#c7362f", "#57606a"
# Text stays text, and the same metrics give the same bytes.
_SVG: Final = {"svg.fonttype": "none", "svg.hashsalt": "chockstone", "font.family": "sans-serif"}
_WIDTH_INCHES, _HEIGHT_INCHES = 9.6, 4.2

Curve = Mapping[int, float]  # step → value


def draw_rewards(metrics_file: Path, picture: Path) -> None:
    """Draw the mean reward of each step, its moving average, the evaluations and the saves.

    ``metrics_file`` is one of ``JsonLines`` and may still be written to. Saves come from the events beside it. Raises
    ValueError if ``picture`` does not end in ``.svg`` or no step has a reward yet, and ModuleNotFoundError without
    matplotlib.
    """
    if picture.suffix != ".svg":
        raise ValueError(f"the plot is drawn as SVG: {str(picture)!r} must end in '.svg'")
    rewards: dict[int, float] = {}
    evaluations: dict[int, float] = {}
    for row in read_rows(metrics_file):
        curve, metrics = (rewards, row["metrics"]) if "metrics" in row else (evaluations, row["evaluation"])
        value = metrics.get(METRIC)
        if value is not None:  # None: missing, or not a finite number
            curve[row["step"]] = value
    if not rewards:
        raise ValueError(f"there is nothing to draw: no step in {str(metrics_file)!r} has {METRIC!r}")
    saves = (read_saved_text(row["text"]) for row in read_rows(metrics_file.with_name(EVENTS)))
    last_step = max([*rewards, *evaluations])
    saved_steps = sorted({save[0] for save in saves if save and save[0] <= last_step})  # a crash discarded later ones
    picture.parent.mkdir(parents=True, exist_ok=True)
    _draw(rewards, evaluations, saved_steps, picture)


def _draw(rewards: Curve, evaluations: Curve, saved_steps: Iterable[int], picture: Path) -> None:
    """Each group of marks has an id in the SVG: rewards, average, evaluations, saves."""
    matplotlib, figure_class = _load_package()
    with matplotlib.rc_context(_SVG):
        figure = figure_class(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
        axes = figure.subplots()
        axes.plot(*_points(rewards), color=REWARD, linewidth=1.6, label="each step", gid="rewards")
        axes.plot(*_points(smoothed(rewards)), color=SMOOTH, linewidth=2.4, label="moving average", gid="average")
        if evaluations:
            axes.plot(
                *_points(evaluations), "o", color=EVALUATION, clip_on=False, label="evaluation", gid="evaluations"
            )
        if marks := list(saved_steps):
            bottom = axes.get_xaxis_transform()  # y is 0 at the axis, independent of the rewards
            style: dict[str, Any] = {"color": SAVE, "markersize": 14, "label": "checkpoint saved", "gid": "saves"}
            axes.plot(marks, [0.0] * len(marks), "|", transform=bottom, clip_on=False, **style)
        axes.set_title("mean reward", loc="left", fontweight="bold")
        axes.set_xlabel("optimizer step", loc="right")
        axes.set_xlim(0, max([*rewards, *evaluations, 2]))
        lowest = min([*rewards.values(), *evaluations.values()])
        axes.set_ylim(bottom=None if lowest < 0 else 0.0)
        axes.grid(axis="y", color="#d0d7de")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.legend(loc="outside lower left", ncols=4, frameon=False)
        figure.savefig(picture, format="svg", metadata={"Date": None})


def smoothed(curve: Curve) -> dict[int, float]:
    """Return an exponential average over about a twentieth of the run, corrected for the bias of its start."""
    keep = 1 - 1 / max(len(curve) / 20, 1.0)
    total, weight = 0.0, 0.0
    averages: dict[int, float] = {}
    for step, value in curve.items():
        total, weight = keep * total + value, keep * weight + 1
        averages[step] = total / weight
    return averages


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _load_package() -> tuple[Any, Any]:  # Any: optional
    require("train", "a plot", packages=["matplotlib"])
    import matplotlib
    from matplotlib.figure import Figure

    return matplotlib, Figure
