"""Runs: the ones that are at hand, each with its lane."""

from __future__ import annotations

from collections.abc import Iterator

from chockstone.engine.live_run import LiveRun

__all__ = ["LiveRun", "Runs"]


class Runs:
    def __init__(self) -> None:
        self._live: dict[str, LiveRun] = {}

    def __iter__(self) -> Iterator[LiveRun]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, run_id: str) -> LiveRun | None:
        return self._live.get(run_id)

    def add(self, live: LiveRun) -> None:
        self._live[live.run_id] = live

    def remove(self, live: LiveRun) -> None:
        """Leaves a run alone that was made anew under the same id."""
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]
