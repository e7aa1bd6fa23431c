"""A picture of two runs: their losses on top of each other, the crashes of the second, and how long it waited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 960, 470
LEFT, RIGHT = 64, 24
LOSS_TOP, LOSS_BOTTOM = 92, 312
WAIT_TOP, WAIT_BOTTOM = 348, 412
ALONE, KILLED, CRASH, INK, PALE, FAINT = "#9ec5f4", "#123a6b", "#c7362f", "#22272e", "#57606a", "#d0d7de"
FONT: Final = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Crash:
    step: int  # after which
    what: str


def draw(
    title: str,
    verdict: str,
    alone: Mapping[int, float],
    killed: Mapping[int, float],
    seconds: Mapping[int, float],
    crashes: list[Crash],
) -> str:
    """As SVG; ``seconds`` is how long each step of the second run took."""
    last = max(alone)
    waits = {step: wait for step, wait in seconds.items() if step > 1}  # the first waits for torch to load
    most_loss = _ceiling(max(*alone.values(), *killed.values()))
    most_wait = _ceiling(max(waits.values()))

    def x(step: float) -> float:
        return LEFT + (step - 1) / (last - 1) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return LOSS_BOTTOM - loss / most_loss * (LOSS_BOTTOM - LOSS_TOP)

    def y_wait(wait: float) -> float:
        return WAIT_BOTTOM - max(wait / most_wait * (WAIT_BOTTOM - WAIT_TOP), 0.8)

    parts = [_tag("rect", width=WIDTH, height=HEIGHT, rx=10, fill="#ffffff")]
    parts += [_text(LEFT, 30, title, font_size=17, font_weight=600), _text(LEFT, 50, verdict, fill=PALE)]
    for value in (0.0, most_loss / 2, most_loss):
        parts += [_across(y(value)), _text(LEFT - 8, y(value) + 4, f"{value:g}", text_anchor="end")]
    for value in (0.0, most_wait):
        parts += [_across(y_wait(value)), _text(LEFT - 8, y_wait(value) + 4, f"{value:g} s", text_anchor="end")]
    for crash in crashes:
        at = x(crash.step + 0.5)
        parts.append(_tag("line", x1=at, x2=at, y1=LOSS_TOP - 8, y2=WAIT_BOTTOM, stroke=CRASH, stroke_dasharray="4 3"))
        parts.append(_text(at, LOSS_TOP - 14, crash.what, text_anchor="middle", fill=CRASH, font_size=12))
    parts += [_curve(alone, x, y, stroke=ALONE, stroke_width=9), _curve(killed, x, y, stroke=KILLED, stroke_width=1.6)]
    parts += [_tag("circle", cx=x(step), cy=y(loss), r=2.4, fill=KILLED) for step, loss in killed.items()]
    for step, wait in waits.items():
        top = y_wait(wait)
        parts.append(_tag("rect", x=x(step) - 4, y=top, width=8, height=WAIT_BOTTOM - top, fill=KILLED))
    parts += [_text(x(step), WAIT_BOTTOM + 18, str(step), text_anchor="middle") for step in (1, *range(8, last + 1, 8))]
    parts.append(_text(LEFT, WAIT_TOP - 8, "how long the script waited for a step", fill=PALE))
    parts.append(_text(WIDTH - RIGHT, WAIT_BOTTOM + 38, "optimizer step", text_anchor="end", fill=PALE))
    parts += _legend(WIDTH - RIGHT - 250, LOSS_TOP + 22)
    facts = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}"}
    return _tag("svg", "\n".join(["", *parts, ""]), **facts, font_family=FONT, font_size=13, fill=INK) + "\n"


def _legend(x: float, y: float) -> list[str]:
    lines: dict[str, dict[str, str | float]] = {
        "loss of the run left alone": {"stroke": ALONE, "stroke_width": 9, "stroke_linecap": "round"},
        "loss of the run that was killed": {"stroke": KILLED, "stroke_width": 1.6},
        "kill -9, and of what": {"stroke": CRASH, "stroke_dasharray": "4 3"},
    }
    parts = [_tag("rect", x=x - 12, y=y - 14, width=262, height=72, fill="#ffffff")]
    parts.append(_tag("circle", cx=x + 13, cy=y + 22, r=2.4, fill=KILLED))
    for number, (text, facts) in enumerate(lines.items()):
        at = y + 22 * number
        parts += [_tag("line", "", x1=x, x2=x + 26, y1=at, y2=at, **facts), _text(x + 38, at + 4, text)]
    return parts


def _curve(values: Mapping[int, float], x: Scale, y: Scale, **facts: str | float) -> str:
    facts |= {"points": " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in values.items())}
    return _tag("polyline", "", fill="none", stroke_linejoin="round", stroke_linecap="round", **facts)


def _across(y: float) -> str:
    return _tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=FAINT)


def _text(x: float, y: float, text: str, **facts: str | float) -> str:
    halo: dict[str, str | float] = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": 4}
    return _tag("text", escape(text), x=x, y=y, **halo, **facts)


def _tag(kind: str, content: str = "", /, **facts: str | float) -> str:
    written = " ".join(
        f"{name.replace('_', '-')}={quoteattr(f'{value:.1f}' if isinstance(value, float) else str(value))}"
        for name, value in facts.items()
    )
    return f"<{kind} {written}>{content}</{kind}>" if content else f"<{kind} {written}/>"


def _ceiling(value: float) -> float:
    """The next even number above it."""
    return 2.0 * (int(value / 2) + 1)
