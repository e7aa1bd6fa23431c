"""Runs: the ones that are at hand, each with its lane."""

from __future__ import annotations

from collections.abc import Iterator

from chockstone.engine.runs.run import Run

__all__ = ["Run", "LiveRuns"]


class LiveRuns:
    def __init__(self) -> None:
        self._live: dict[str, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, run_id: str) -> Run | None:
        return self._live.get(run_id)

    def add(self, live: Run) -> None:
        self._live[live.run_id] = live

    def remove(self, live: Run) -> None:
        """Leaves a run alone that was made anew under the same id."""
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]
