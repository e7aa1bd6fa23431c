"""Snapshots: one consistent state of a trainer, taken between two steps while generation continues.

The trainer takes a snapshot in the event loop's thread without an await, and submits the save of the weights at the
same point in the order of the run's operations. Groups that are being generated at that moment belong to the
snapshot. The save waits for them in the background, so that a resumed run trains on the same groups.
"""

from __future__ import annotations

import asyncio
import copy
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from chockstone.checkpoints.errors import DamagedArchive
from chockstone.trainers.errors import ResumeRefused
from chockstone.trainers.rollouts.generation import PendingGroup
from chockstone.trainers.rollouts.loader import ProblemDraw
from chockstone.trainers.rollouts.rollouts import draw_state, pack_groups, read_draw, unpack_groups

VERSION: Final = 1
KIND: Final = "trainer"


@dataclass(slots=True)
class TrainerProgress:
    """Totals over all processes of a run. Saved under the key "tally"."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_reward: float | None = None
    best_step: int = 0
    evaluation: dict[str, float] = field(default_factory=dict)  # the newest
    evaluated_step: int = 0

    def add_step(self, reward: float, *, samples: int, tokens: int) -> None:
        self.step += 1
        self.samples += samples
        self.tokens += tokens
        if self.best_reward is None or reward > self.best_reward:
            self.best_reward, self.best_step = reward, self.step


@dataclass(frozen=True, slots=True)
class TrainerSnapshot:
    identity: Mapping[str, Any]
    progress: TrainerProgress
    loader: Mapping[str, Any]
    pending: tuple[PendingGroup, ...]
    begun: tuple[PendingGroup, ...]  # the finished and running ones of ``pending``; later policies generate the others
    extra: Mapping[str, Any]  # states of the user's objects

    @classmethod
    def take(
        cls,
        identity: Mapping[str, Any],
        progress: TrainerProgress,
        loader: Mapping[str, Any],
        pending: tuple[PendingGroup, ...],
        extra: Mapping[str, Any],
    ) -> TrainerSnapshot:
        """Copy everything that training changes later."""
        return cls(
            identity=dict(identity),
            progress=copy.deepcopy(progress),
            loader=copy.deepcopy(dict(loader)),
            pending=pending,
            begun=tuple(each for each in pending if each.is_begun),
            extra=copy.deepcopy(dict(extra)),
        )

    @property
    def step(self) -> int:
        return self.progress.step

    async def state(self, paths: Mapping[str, str]) -> dict[str, Any]:
        """Wait for the running groups and return the state to write. ``paths``: where the weights are."""
        finished = [await pending.wait() for pending in self.begun]
        groups = [group for group in finished if group is not None]
        return {
            "trainer": {
                "version": VERSION,
                "identity": dict(self.identity),
                "tally": asdict(self.progress),
                "paths": dict(paths),
                "draws": [draw_state(pending.draw) for pending in self.pending],
            },
            "loader": dict(self.loader),
            "rollouts": await asyncio.to_thread(pack_groups, groups),
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True)
class SavedTrainerState:
    """A snapshot as read from an archive."""

    progress: TrainerProgress
    paths: Mapping[str, str]
    loader: Mapping[str, Any]
    window: tuple[tuple[ProblemDraw, Any], ...]  # each draw and its group; None: generate it again
    extra: Mapping[str, Any]


def read_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> SavedTrainerState:
    """Raises ResumeRefused for the state of another run or a later version, and DamagedArchive if it is malformed."""
    try:
        return _read_state(state, identity)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise DamagedArchive(f"what is in it is not the state of a trainer: {error!r}") from error


def _read_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> SavedTrainerState:
    trainer = state["trainer"]
    if trainer["version"] > VERSION:
        raise ResumeRefused(
            f"the state was saved by a later trainer (version {trainer['version']}, this one reads up to {VERSION})"
        )
    saved = trainer["identity"]
    changed = [
        f"{name} was {saved.get(name)!r}, is {identity.get(name)!r}"
        for name in sorted({*saved, *identity})
        if saved.get(name) != identity.get(name)
    ]
    if changed:
        raise ResumeRefused(
            f"the state in this directory is of another run: {'; '.join(changed)}. "
            "Use the same settings to resume it, or another directory to start a new run."
        )
    groups = {group.draw: group for group in unpack_groups(state["rollouts"])}
    window = tuple((draw, groups.pop(draw, None)) for draw in map(read_draw, trainer["draws"]))
    if groups:
        raise ValueError(f"it has groups of draws {sorted(draw.number for draw in groups)}, which were trained on")
    return SavedTrainerState(
        progress=_read_progress(trainer["tally"]),
        paths=dict(trainer["paths"]),
        loader=dict(state["loader"]),
        window=window,
        extra={name: state["extra"][name] for name in identity.get("extra", state["extra"])},
    )


def _read_progress(saved: Mapping[str, Any]) -> TrainerProgress:
    progress = TrainerProgress(**saved)
    for name in ("step", "samples", "tokens", "best_step", "evaluated_step"):
        if operator.index(saved[name]) < 0:
            raise ValueError(f"its {name} is {saved[name]}")
    if not all(math.isfinite(number) for number in (progress.seconds, progress.best_reward or 0.0)):
        raise ValueError("its seconds or its best reward are not finite")
    return progress
