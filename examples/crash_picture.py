"""Draw two training runs as an animated SVG: their losses on top of each other, and the kills of the second run.

The file needs no font, script or other file. It has a background of its own and follows the reader's light or dark
mode. Without animation, a viewer shows the finished picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import dist
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 640, 430, 28
TOP, BOTTOM = 112, 292  # of the curves
STEP_SECONDS, KILL_SECONDS = 0.1, 0.5  # of the animation

STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 18px }
  .card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .faint { fill: #59636e }
  .title { font-size: 23px; font-weight: 650 } .number { font-size: 31px; font-weight: 700 }
  .alone { stroke: #a9cdf5; stroke-width: 11 } .killed { stroke: #0b3d78; stroke-width: 3 }
  .curve { fill: none; stroke-linecap: round; stroke-linejoin: round }
  .kill { stroke: #cf222e; stroke-width: 2.5; stroke-dasharray: 5 5 } .cross { stroke: #cf222e; stroke-width: 3.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d } .text { fill: #f0f6fc } .faint { fill: #9aa4af }
    .alone { stroke: #1f4d80 } .killed { stroke: #9ecbff }
    .kill, .cross { stroke: #ff7b72 }
  }
"""


Point = tuple[float, float]


def draw(
    picture: Path,
    *,
    title: str,
    alone: Mapping[int, float],
    killed: Mapping[int, float],
    kills: Mapping[int, str],
    facts: Mapping[str, str],
) -> None:
    """Write an SVG file. ``kills``: what was killed, by the step before it. ``facts``: captions by number."""
    top, last = max([*alone.values(), *killed.values()]), max(alone)

    def points(losses: Mapping[int, float]) -> list[Point]:
        across, down = (WIDTH - 2 * MARGIN) / (last - 1), (BOTTOM - TOP) / top
        return [(MARGIN + (step - 1) * across, BOTTOM - loss * down) for step, loss in losses.items()]

    curve = points(killed)
    appear = times([*killed], kills)
    marks = [
        mark(midpoint(curve[place - 1], curve[place]), kills[step], appear[place - 1])
        for place, step in enumerate(killed, 1)
        if step in kills
    ]
    column = (WIDTH - 2 * MARGIN) / len(facts)
    numbers = [
        f'<text class="text number" x="{MARGIN + column * place:.0f}" y="362">{number}</text>'
        f'<text class="faint" x="{MARGIN + column * place:.0f}" y="392">{caption}</text>'
        for place, (number, caption) in enumerate(facts.items())
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}{animation(curve, appear)}</style>",
        f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="14"/>',
        f'<text class="text title" x="{MARGIN}" y="46">{title}</text>',
        '<path class="curve alone" d="M34 75h24"/><text class="faint" x="70" y="81">uninterrupted run</text>',
        '<path class="curve killed" d="M272 75h24"/><text class="faint" x="306" y="81">killed run</text>',
        '<path class="cross" d="M436 68l14 14m0 -14l-14 14"/><text class="faint" x="460" y="81">kill -9</text>',
        f'<polyline class="curve alone" points="{joined(points(alone))}"/>',
        *marks,
        f'<polyline class="curve killed drawn" pathLength="1" points="{joined(curve)}"/>',
        *numbers,
        "</svg>",
    ]
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text("\n".join(lines) + "\n")


def mark(at: Point, what: str, seconds: float) -> str:
    """A line and a cross per kill, which appear after so many seconds. Browsers show ``what`` under the pointer."""
    x, y = at
    crosses = "".join(
        f'<path class="cross" d="M{x - 7:.1f} {height - 7:.1f}l14 14m0 -14l-14 14"/>'
        for height in ([y, y - 24] if what.endswith("twice") else [y])
    )
    return (
        f'<g class="shown" style="animation-delay: {seconds:.1f}s"><title>{what}</title>'
        f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"/>{crosses}</g>'
    )


def times(steps: Sequence[int], kills: Mapping[int, str]) -> list[float]:
    """When the animation reaches each step: it waits after a kill."""
    waits = [STEP_SECONDS + KILL_SECONDS * (step in kills) for step in steps[:-1]]
    return [*accumulate(waits, initial=0.0)]


def animation(curve: Sequence[Point], appear: Sequence[float]) -> str:
    """Draws the second curve step by step."""
    lengths = [*accumulate((dist(*pair) for pair in pairwise(curve)), initial=0.0)]
    frames = "".join(
        f"\n    {seconds / appear[-1]:.1%} {{ stroke-dashoffset: {1 - length / lengths[-1]:.4f} }}"
        for seconds, length in zip(appear, lengths, strict=True)
    )
    return f"""
  @media (prefers-reduced-motion: no-preference) {{
    .drawn {{ stroke-dasharray: 1; animation: draw {appear[-1]:.1f}s linear both }}
    .shown {{ animation: show 0.2s linear both }}
  }}
  @keyframes draw {{{frames}
  }}
  @keyframes show {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
"""


def midpoint(one: Point, other: Point) -> Point:
    return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2


def joined(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
