"""Plot the losses of two runs with matplotlib, with the kills and the waiting times of the second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALONE, KILLED, CRASH, FAINT = "#9ec5f4", "#123a6b", "#c7362f", "#d0d7de"


@dataclass(frozen=True, slots=True)
class Crash:
    step: int  # the kill came after this step
    what: str


def draw(
    picture: Path,
    title: str,
    verdict: str,
    *,
    alone: Mapping[int, float],
    killed: Mapping[int, float],
    seconds: Mapping[int, float],
    crashes: list[Crash],
) -> None:
    """Write an SVG file; ``seconds`` is how long each step of the second run took."""
    import matplotlib
    from matplotlib.figure import Figure

    waits = {step: wait for step, wait in seconds.items() if step > 1}  # the first waits for torch to load
    # Keep text as text, and give the same bytes for the same runs.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "chockstone"}):
        figure = Figure(figsize=(9.6, 4.7), layout="constrained")
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        above.set_title(f"{verdict}\n", loc="left", fontsize=10, color="#57606a")
        above.plot([*alone], [*alone.values()], color=ALONE, linewidth=7, label="loss, uninterrupted run")
        line: dict[str, Any] = {"color": KILLED, "linewidth": 1.4, "marker": "o", "markersize": 3}
        above.plot([*killed], [*killed.values()], **line, label="loss, killed run")
        below.bar([*waits], [*waits.values()], color=KILLED, width=0.5)
        for number, crash in enumerate(crashes):
            label = "kill -9 of …" if number == 0 else None
            above.axvline(crash.step + 0.5, color=CRASH, linestyle="--", linewidth=1, label=label)
            below.axvline(crash.step + 0.5, color=CRASH, linestyle="--", linewidth=1)
            above.text(
                crash.step + 0.5, 1.01, crash.what, transform=above.get_xaxis_transform(), color=CRASH, ha="center"
            )
        above.set_ylim(bottom=0)
        above.legend(loc="upper right")
        below.set_title("waiting time of the script per step, in seconds", loc="left", fontsize=10)
        below.set_xlabel("optimizer step", loc="right")
        for axes in (above, below):
            axes.grid(axis="y", color=FAINT)
            axes.spines[["top", "right", "left"]].set_visible(False)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, format="svg", metadata={"Date": None})
