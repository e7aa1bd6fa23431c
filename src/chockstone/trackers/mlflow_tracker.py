"""MLflow: a run in one experiment, found again by a tag with the id of the training run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chockstone.extras import require
from chockstone.trackers.tracker import PROJECT, TrackedCheckpoint, TrackedPoint, TrackedRun, series_name

_RUN_TAG: Final = "chockstone.run_id"
_BATCH: Final = 1000  # metrics that MLflow takes in one call
_RUNNING: Final = "RUNNING"


class MlflowTracker:
    """MLFLOW_TRACKING_URI names the server or the store, MLFLOW_EXPERIMENT_NAME the experiment.

    Without the first, it writes to a SQLite file in ``directory``.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ExtraMissing."""
        require("mlflow", "--track mlflow")
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._directory = directory
        self._is_own_store = not os.environ.get("MLFLOW_TRACKING_URI")
        store = f"sqlite:///{(directory / 'mlflow.db').absolute()}"
        self._client: Any = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or store)  # Any: optional package
        self._experiment: str | None = None
        self._runs: dict[str, str] = {}  # our id → MLflow's
        self._written: dict[str, set[str]] = {}  # by our id: parameters, which MLflow does not let anyone change

    def open(self, run: TrackedRun) -> None:
        if run.run_id not in self._runs:
            self._runs[run.run_id] = self._find(run) or self._create(run)
        written = self._written.setdefault(run.run_id, set())
        if missing := {key: value for key, value in run.settings().items() if key not in written}:
            parameters = [self._param(key, str(value)) for key, value in missing.items()]
            self._client.log_batch(self._runs[run.run_id], params=parameters)
            written |= set(missing)

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        metrics = [
            self._metric(series_name(name), value, _milliseconds(point.at), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._runs[run.run_id], metrics=metrics[start : start + _BATCH])

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        """A metric marks the step of each checkpoint, and a tag has the path of the newest of each kind."""
        marks = [
            self._metric(f"checkpoint/{each.kind}", float(each.step), _milliseconds(each.at), each.step)
            for each in checkpoints
        ]
        newest = {each.kind: each.path for each in checkpoints}
        tags = [self._tag(f"checkpoint.{kind}", path) for kind, path in newest.items()]
        self._client.log_batch(self._runs[run.run_id], metrics=marks, tags=tags)

    def close(self, run_id: str) -> None:
        if (found := self._runs.pop(run_id, None)) is not None:
            self._written.pop(run_id, None)
            self._client.set_terminated(found)

    def shut_down(self) -> None:
        for run_id in list(self._runs):
            self.close(run_id)

    def _find(self, run: TrackedRun) -> str | None:
        found = self._client.search_runs([self._experiment_id()], f"tags.`{_RUN_TAG}` = '{run.run_id}'", max_results=1)
        if not found:
            return None
        existing = found[0]
        self._written[run.run_id] = set(existing.data.params)
        if existing.info.status != _RUNNING:
            self._client.update_run(existing.info.run_id, status=_RUNNING)
        return str(existing.info.run_id)

    def _create(self, run: TrackedRun) -> str:
        created = self._client.create_run(
            self._experiment_id(),
            start_time=_milliseconds(run.created_at),
            run_name=run.name,
            tags={_RUN_TAG: run.run_id, "mlflow.user": run.owner, "mlflow.source.name": PROJECT},
        )
        return str(created.info.run_id)

    def _experiment_id(self) -> str:
        if self._experiment is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
            found = self._client.get_experiment_by_name(name)
            place = (self._directory / "mlflow-artifacts").absolute().as_uri() if self._is_own_store else None
            self._experiment = (
                str(found.experiment_id) if found is not None else self._client.create_experiment(name, place)
            )
        return self._experiment


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
