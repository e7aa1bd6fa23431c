"""Writes metrics.md from the declarations. `make reference` runs it; a test holds it current."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from chockstone.telemetry.declarations import DECLARATIONS, MetricDeclaration

PAGE = Path(__file__).with_name("metrics.md")
HEAD = "| metric | type | labels | replica | meaning |\n|---|---|---|---|---|\n"
INTRODUCTION = """\
# Metrics

`make reference` writes this page from `src/chockstone/telemetry/declarations.py`.
[Metrics and alerts](../guides/metrics-and-alerts.md) says how to use them.

`GET /metrics` has these metrics in Prometheus' text format. A counter grows until the process ends. A histogram
`NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. Sizes are in bytes and times in seconds. No metric has
a label for a user, a run or a checkpoint. *Replica* marks metrics that API replicas export, too: each process
reports on itself.
"""


def render() -> str:
    sections = [
        f"## {title}\n\n{HEAD}{''.join(map(row, declared))}"
        for title, declared in groupby(DECLARATIONS.values(), lambda each: each.section)
    ]
    return "\n".join((INTRODUCTION, *sections))


def row(metric: MetricDeclaration) -> str:
    labels = "<br>".join(label_cell(label, values) for label, values in metric.labels.items())
    replica = "" if metric.is_of_engine else "yes"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {replica} | {metric.help} |\n".replace("|  |", "| |")


def label_cell(label: str, values: tuple[str, ...]) -> str:
    return f"`{label}`: {', '.join(values)}" if values else f"`{label}`"


if __name__ == "__main__":
    PAGE.write_text(render())
