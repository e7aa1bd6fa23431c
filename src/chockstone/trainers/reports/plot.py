"""The plot: a run's reward over its steps, as a picture that any browser shows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from chockstone.trainers.reports.jsonl import EVENTS, read_rows

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 356
REWARD, SMOOTH, EVALUATION, SAVE = "#9ec5f4", "#123a6b", "#c7362f", "#57606a"
INK, PALE, FAINT = "#22272e", "#57606a", "#d0d7de"
FONT: Final = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
METRIC: Final = "reward/mean"

_SAVED: Final = re.compile(r"\bstep-(\d+) saved\b")
Curve = Mapping[int, float]
Scale = Callable[[float], float]


def draw_rewards(metrics_file: Path, picture: Path) -> None:
    """Draw the mean reward of each step, its moving average, the evaluations and the saves, as SVG.

    ``metrics_file`` is JsonLines' and may be one that is being written; saves are found in the events beside it.
    Raises ValueError if ``picture`` is not to be an ``.svg`` or no step has a reward yet.
    """
    if picture.suffix != ".svg":
        raise ValueError(f"the plot is drawn as SVG: {str(picture)!r} must end in '.svg'")
    rewards: dict[int, float] = {}
    evaluations: dict[int, float] = {}
    for row in read_rows(metrics_file):
        curve, metrics = (rewards, row["metrics"]) if "metrics" in row else (evaluations, row["evaluation"])
        value = metrics.get(METRIC)
        if value is not None:  # absent, or was not a finite number
            curve[row["step"]] = value
    if not rewards:
        raise ValueError(f"there is nothing to draw: no step in {str(metrics_file)!r} has {METRIC!r}")
    texts = (row["text"] for row in read_rows(metrics_file.with_name(EVENTS)))
    saves = sorted({int(found[1]) for text in texts if (found := _SAVED.search(text))})
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(draw(rewards, evaluations, saves), encoding="utf-8")


def draw(rewards: Curve, evaluations: Curve, saves: Iterable[int]) -> str:
    """As SVG. ``rewards`` is not empty."""
    last_step = max(*rewards, *evaluations, 2)
    values = [*rewards.values(), *evaluations.values()]
    grid = _grid(min(0.0, *values), max(*values, min(values) + 1e-6))
    low, high = grid[0], grid[-1]

    def x(step: float) -> float:
        return LEFT + step / last_step * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    parts = [_tag("rect", width=WIDTH, height=HEIGHT, rx=10, fill="#ffffff")]
    parts.append(_text(LEFT, 30, "mean reward", font_size=17, font_weight=600))
    for value in grid:
        parts.append(_tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), stroke=FAINT))
        parts.append(_text(LEFT - 8, y(value) + 4, f"{value:g}", text_anchor="end"))
    ticks = [step for step in _grid(0, last_step) if step <= last_step]
    parts += [_text(x(step), BOTTOM + 22, f"{step:g}", text_anchor="middle") for step in ticks]
    kept = [x(step) for step in saves if step <= last_step]  # a later one is of a life that was lost
    marks = [_tag("line", x1=at, x2=at, y1=BOTTOM, y2=BOTTOM + 7, stroke=SAVE) for at in kept]
    parts += [
        _curve(rewards, x, y, stroke=REWARD, stroke_width=1.6),
        _curve(_smoothed(rewards), x, y, stroke=SMOOTH, stroke_width=2.4),
        *(_tag("circle", cx=x(step), cy=y(value), r=4, fill=EVALUATION) for step, value in evaluations.items()),
        *marks,
        _text(WIDTH - RIGHT, BOTTOM + 44, "optimizer step", text_anchor="end", fill=PALE),
    ]
    legend = {"each step": REWARD, "moving average": SMOOTH}
    legend |= {"evaluation": EVALUATION} if evaluations else {}
    legend |= {"checkpoint saved": SAVE} if marks else {}
    for number, (text, colour) in enumerate(legend.items()):
        at = LEFT + 150 * number
        parts += [_tag("circle", cx=at + 5, cy=BOTTOM + 40, r=5, fill=colour), _text(at + 16, BOTTOM + 44, text)]
    facts = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}"}
    return _tag("svg", "\n".join(["", *parts, ""]), **facts, font_family=FONT, font_size=13, fill=INK) + "\n"


def _smoothed(curve: Curve) -> dict[int, float]:
    """An exponential average over about a twentieth of the run, without the pull of its start."""
    keep = 1 - 1 / max(len(curve) / 20, 1.0)
    total, weight = 0.0, 0.0
    smoothed: dict[int, float] = {}
    for step, value in curve.items():
        total, weight = keep * total + value, keep * weight + 1
        smoothed[step] = total / weight
    return smoothed


def _grid(low: float, high: float) -> list[float]:
    """Four to eight round numbers, from at most ``low`` to at least ``high``."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    stride = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first, last = math.floor(low / stride), math.ceil(high / stride)
    return [round(number * stride, 12) for number in range(first, last + 1)]


def _curve(curve: Curve, x: Scale, y: Scale, **facts: str | float) -> str:
    points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in curve.items())
    return _tag("polyline", points=points, fill="none", stroke_linejoin="round", stroke_linecap="round", **facts)


def _text(x: float, y: float, text: str, **facts: str | float) -> str:
    return _tag("text", escape(text), x=x, y=y, **facts)


def _tag(kind: str, content: str = "", /, **facts: str | float) -> str:
    written = " ".join(
        f"{name.replace('_', '-')}={quoteattr(f'{value:.1f}' if isinstance(value, float) else str(value))}"
        for name, value in facts.items()
    )
    return f"<{kind} {written}>{content}</{kind}>" if content else f"<{kind} {written}/>"
