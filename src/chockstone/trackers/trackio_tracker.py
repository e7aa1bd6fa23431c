"""Trackio: a run of one project, found again by its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from chockstone.extras import require
from chockstone.trackers.tracker import PROJECT, TrackedCheckpoint, TrackedPoint, TrackedRun, series_name


class TrackioTracker:
    """TRACKIO_DIR names the directory, TRACKIO_SPACE_ID a Space instead of it, TRACKIO_PROJECT the project."""

    def __init__(self) -> None:
        """Raises ExtraMissing."""
        require("trackio", "--track trackio")
        import trackio

        self._trackio: Any = trackio  # Any: optional package
        self._info = trackio.AlertLevel.INFO
        self._runs: dict[str, Any] = {}

    def open(self, run: TrackedRun) -> None:
        if run.run_id not in self._runs:
            # In a context of its own: Trackio finishes the run that the context had before.
            self._runs[run.run_id] = Context().run(
                self._trackio.init,
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=run.name,
                config=run.settings(),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
            )

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            values = {series_name(name): value for name, value in point.values.items()}
            self._runs[run.run_id].log(values, step=point.step)

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        """An alert for each, which Trackio shows beside the curves."""
        for each in checkpoints:
            self._runs[run.run_id].alert(
                title=f"checkpoint {each.kind}", text=each.path, level=self._info, step=each.step
            )

    def close(self, run_id: str) -> None:
        if (opened := self._runs.pop(run_id, None)) is not None:
            opened.finish()

    def shut_down(self) -> None:
        for run_id in list(self._runs):
            self.close(run_id)
