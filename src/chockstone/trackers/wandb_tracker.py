"""Weights & Biases: a run whose id is made from the id of the training run, so that it is resumed by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chockstone.extras import require
from chockstone.trackers.tracker import PROJECT, STEP, TrackedCheckpoint, TrackedPoint, TrackedRun, series_name

_QUIET: Final = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_stats": True,  # of this process, which computes nothing
    "x_disable_machine_info": True,
}


class WandbTracker:
    """The environment has the key (WANDB_API_KEY), the host (WANDB_BASE_URL), the project (WANDB_PROJECT) and the mode.

    With WANDB_MODE=offline the runs are files in ``directory``, which ``wandb sync`` uploads.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ExtraMissing."""
        require("wandb", "--track wandb")
        import wandb

        self._wandb: Any = wandb  # Any: optional package
        self._directory = os.environ.get("WANDB_DIR") or str(directory)
        self._runs: dict[str, Any] = {}

    def open(self, run: TrackedRun) -> None:
        if run.run_id in self._runs:
            self._runs[run.run_id].config.update(run.settings(), allow_val_change=True)
            return
        opened = self._wandb.init(
            id=run.key,
            name=run.name,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=self._directory,
            config=run.settings(),
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(**_QUIET),
        )
        opened.define_metric(STEP, hidden=True)
        opened.define_metric("*", step_metric=STEP)
        self._runs[run.run_id] = opened

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        """The position is W&B's own step: W&B drops a point that it has already."""
        opened = self._runs[run.run_id]
        for point in points:
            values = {series_name(name): value for name, value in point.values.items()}
            opened.log({**values, STEP: point.step, "_timestamp": point.at}, step=point.position)

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        """The summary has the path and the step of the newest checkpoint of each kind."""
        opened = self._runs[run.run_id]
        for each in checkpoints:
            opened.summary[f"checkpoint/{each.kind}"] = each.path
            opened.summary[f"checkpoint/{each.kind}/step"] = each.step

    def close(self, run_id: str) -> None:
        if (opened := self._runs.pop(run_id, None)) is not None:
            opened.finish()

    def shut_down(self) -> None:
        for run_id in list(self._runs):
            self.close(run_id)
        self._wandb.teardown()
