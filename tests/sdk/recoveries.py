"""Receipts of recoveries, as the server lists them."""

from __future__ import annotations

from typing import Any

from faults.crashes import Heard
from support.live import LiveServer


def recoveries(server: LiveServer, heard: Heard) -> list[dict[str, Any]]:
    """Of all runs of which the scripts kept something."""
    runs = {path.removeprefix("tinker://").partition("/")[0] for path in heard.saved.values()}
    with server.http() as http:
        return [each for run_id in runs for each in _of(http.get(f"training_runs/{run_id}/recoveries"))]


def _of(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["recoveries"]
    return found
