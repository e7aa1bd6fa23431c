"""Trackers: the interface of an experiment tracker, and the facts that it gets.

Names and texts come from clients. ``series_name`` and ``TrackedRun.settings`` bound and clean them, so that no tracker
refuses them: a refused point would be sent again and again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

TrackerKind = Literal["wandb", "mlflow", "trackio", "tensorboard"]
TRACKERS: Final[tuple[TrackerKind, ...]] = get_args(TrackerKind)
LEARNING_RATE: Final = "learning_rate"
STEP: Final = "optimizer_step"  # series with the optimizer steps, for trackers that need the x-axis as a series
PROJECT: Final = "chockstone"  # unless the tracker's own variable names another

_RESERVED: Final = frozenset({"metrics", "project", "run", "step", "time", "timestamp", STEP})
_UNSAFE: Final = re.compile(r"[^\w./:-]", re.ASCII)
_UNSAFE_KEY: Final = re.compile(r"[^\w-]", re.ASCII)
_MAX_NAME: Final = 64
_MAX_TEXT: Final = 250
_MAX_METADATA: Final = 50


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker shows of a run besides its points."""

    run_id: str
    owner: str
    base_model: str
    rank: int  # of the LoRA; 0: all weights are trained
    created_at: float  # epoch seconds
    learning_rate: float | None  # of the first optimizer step; None: not known yet
    metadata: Mapping[str, str]  # what the client wrote

    @property
    def key(self) -> str:
        """The run's id in a form that every tracker takes as an id and every file system as a name."""
        return _UNSAFE_KEY.sub("-", self.run_id)

    @property
    def name(self) -> str:
        """For people, and unique: the name in the client's metadata or the base model, and the start of the id."""
        given = self.metadata.get("name") or self.base_model.rpartition("/")[2]
        head, _, number = self.run_id.partition(":train:")
        return _UNSAFE_KEY.sub("-", f"{given[:_MAX_NAME]}-{head[:8]}-{number or 0}")

    def settings(self) -> dict[str, str | int | float]:
        """Flat, with bounded keys and texts. The client's metadata are below ``metadata.``."""
        found: dict[str, str | int | float] = {
            "run_id": self.run_id,
            "owner": self.owner[:_MAX_TEXT],
            "base_model": self.base_model[:_MAX_TEXT],
            "rank": self.rank,
        }
        if self.learning_rate is not None:
            found[LEARNING_RATE] = self.learning_rate
        for key, value in list(self.metadata.items())[:_MAX_METADATA]:
            found[f"metadata.{_UNSAFE_KEY.sub('_', key[:_MAX_NAME])}"] = value[:_MAX_TEXT]
        return found


@dataclass(frozen=True, slots=True)
class TrackedPoint:
    position: int  # grows from point to point of a run
    at: float  # epoch seconds
    step: int  # optimizer steps before it
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedCheckpoint:
    path: str
    kind: str
    step: int
    at: float


class Tracker(Protocol):
    """One experiment tracker. Calls come one at a time; they may block and may raise."""

    def open(self, run: TrackedRun) -> None:
        """Create the run in the tracker, or continue the one that an earlier process created. May be called again."""

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        """Record points of an open run, in the order of their positions."""

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        """Record saved checkpoints of an open run."""

    def close(self, run_id: str) -> None:
        """Flush and release a run. ``open`` continues it. Does nothing for a run that is not open."""

    def shut_down(self) -> None:
        """Close all runs. No other call follows."""


def series_name(name: str) -> str:
    """A series name that every tracker takes: no leading ``_``, no path that climbs, no name that trackers reserve."""
    parts = [part.strip(".") for part in _UNSAFE.sub("_", name[:_MAX_NAME]).split("/")]
    clean = "/".join(part for part in parts if part).lstrip("_:-/") or "value"
    return f"{clean}_" if clean in _RESERVED else clean
