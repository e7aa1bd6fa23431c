"""The table of docs/benchmarks.md: ``python benchmarks/adapters/table.py numbers.json``, of a run with ``--json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.units import duration

COLUMNS = (("save", "blocked"), ("save", "durable"), ("restore", "seconds"))
HEAD = (
    "| host: its own way | training blocked, own / ours | durable, own / ours | restore, own / ours, verified |",
    "|---|---|---|---|",
)


def lines(numbers: dict[str, Any]) -> list[str]:  # Any: JSON
    """One line for each host: medians of the host's own way and of ours."""
    measures = numbers["measures"]
    found = []
    for host in measures["save"]:
        cells = []
        for measure, metric in COLUMNS:
            rows = list(measures.get(measure, {}).get(host, {}).values())  # its own way first
            medians = [row.get("metrics", {}).get(metric, {}).get("median") for row in rows]
            cells.append(" / ".join("not run" if each is None else duration(each) for each in medians) or "not run")
        own = next(iter(measures["save"][host]))
        found.append(f"| {own} | {' | '.join(cells)} |")
    return found


if __name__ == "__main__":
    print("\n".join((*HEAD, *lines(json.loads(Path(sys.argv[1]).read_text())))))
