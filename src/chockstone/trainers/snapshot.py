"""Cuts: one consistent picture of a trainer, taken between two steps while generation goes on.

A cut is taken in the event loop's thread without an await, at the very place in the order of the run's
operations at which its weights are saved. Rollouts that are under way at that moment belong to it and
are waited for, in the background, before it is written; so a resumed run trains on the same ones.
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
from chockstone.trainers.rollouts.generation import Slot
from chockstone.trainers.rollouts.loader import Draw
from chockstone.trainers.rollouts.rollouts import draw_state, pack_groups, read_draw, unpack_groups

VERSION: Final = 1
KIND: Final = "trainer"


@dataclass(slots=True)
class TrainerProgress:
    """What adds up over all lives of a run."""

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
    tally: TrainerProgress
    loader: Mapping[str, Any]
    slots: tuple[Slot, ...]
    begun: tuple[Slot, ...]  # those of them that are done or under way; the others will be another policy's
    extra: Mapping[str, Any]  # states of the user's own objects

    @classmethod
    def take(
        cls,
        identity: Mapping[str, Any],
        tally: TrainerProgress,
        loader: Mapping[str, Any],
        slots: tuple[Slot, ...],
        extra: Mapping[str, Any],
    ) -> TrainerSnapshot:
        """Copies what goes on changing."""
        begun = tuple(slot for slot in slots if slot.is_begun)
        return cls(
            dict(identity), copy.deepcopy(tally), copy.deepcopy(dict(loader)), slots, begun, copy.deepcopy(dict(extra))
        )

    @property
    def step(self) -> int:
        return self.tally.step

    async def state(self, paths: Mapping[str, str]) -> dict[str, Any]:
        """As it is written, once the rollouts in it have settled. ``paths``: where its weights are."""
        settled = [await slot.settled() for slot in self.begun]
        groups = [group for group in settled if group is not None]
        return {
            "trainer": {
                "version": VERSION,
                "identity": dict(self.identity),
                "tally": asdict(self.tally),
                "paths": dict(paths),
                "draws": [draw_state(slot.draw) for slot in self.slots],
            },
            "loader": dict(self.loader),
            "rollouts": await asyncio.to_thread(pack_groups, groups),
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True)
class SavedTrainerState:
    """What a cut is when it comes back."""

    tally: TrainerProgress
    paths: Mapping[str, str]
    loader: Mapping[str, Any]
    window: tuple[tuple[Draw, Any], ...]  # each draw and its group, or None: to be generated again
    extra: Mapping[str, Any]


def read_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> SavedTrainerState:
    """Raises ResumeRefused if it is of another run, or of a later version; DamagedArchive if it is no such state."""
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
            "Use the same settings to go on with it, or another directory to begin anew."
        )
    groups = {group.draw: group for group in unpack_groups(state["rollouts"])}
    window = tuple((draw, groups.pop(draw, None)) for draw in map(read_draw, trainer["draws"]))
    if groups:
        raise ValueError(f"it has groups of draws {sorted(draw.number for draw in groups)}, which were trained on")
    return SavedTrainerState(
        tally=_read_tally(trainer["tally"]),
        paths=dict(trainer["paths"]),
        loader=dict(state["loader"]),
        window=window,
        extra={name: state["extra"][name] for name in identity.get("extra", state["extra"])},
    )


def _read_tally(saved: Mapping[str, Any]) -> TrainerProgress:
    tally = TrainerProgress(**saved)
    for name in ("step", "samples", "tokens", "best_step", "evaluated_step"):
        if operator.index(saved[name]) < 0:
            raise ValueError(f"its {name} is {saved[name]}")
    if not all(math.isfinite(number) for number in (tally.seconds, tally.best_reward or 0.0)):
        raise ValueError("its seconds or its best reward are no finite number")
    return tally
