"""Find the newest checkpoint of a run whose parts both load: the trainer's archive and the weights on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tinker
from tinker import types

from chockstone.checkpoints import Checkpointer, StoredCheckpoint
from chockstone.checkpoints.errors import CheckpointError, DamagedArchive
from chockstone.checkpoints.restoring.verdicts import Verdict, judge
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.trainers.errors import ResumeRefused
from chockstone.trainers.reports.reports import EventReporter
from chockstone.trainers.saves import TrainerCheckpoint
from chockstone.trainers.snapshot import KIND, SavedTrainerState, read_state

_UNUSABLE_WEIGHTS: Final = {400, 404, 410, 422}  # HTTP statuses


@dataclass(frozen=True, slots=True)
class Resumed:
    saved: SavedTrainerState
    run: tinker.TrainingClient
    checkpoint: TrainerCheckpoint


async def resume(
    checkpointer: Checkpointer,
    identity: Mapping[str, Any],
    open_run: Callable[[str], Awaitable[tinker.TrainingClient]],
    report_event: EventReporter,
) -> Resumed | None:
    """Return None if the store holds no checkpoint. Skips damaged and deleted checkpoints with a warning.

    Raises ResumeRefused if checkpoints exist and none can be used: a fresh start would hide the loss. An error that
    may be temporary is raised unchanged: neither an older checkpoint nor a fresh start may replace the newest one.
    """
    walk = WalkBack(await asyncio.to_thread(_candidates, checkpointer))
    for found in walk:
        step = found.manifest.step if found.manifest else None
        try:
            saved = await asyncio.to_thread(_read, checkpointer, found, identity)
        except CheckpointError as error:
            walk.reject(judge(error), str(error), step=step, is_sure=True)  # the reader has read it twice
            if walk.is_over:
                raise
            report_event(f"checkpoint {found.name!r} skipped: {error}", level="warning")
            continue
        try:
            run = await open_run(saved.paths["state"])
        except (tinker.APIStatusError, tinker.RequestFailedError) as error:
            if not _weights_are_unusable(error):
                raise  # a later try may succeed
            walk.reject(Verdict.CORRUPT, str(error), step=step, is_sure=True)
            report_event(f"checkpoint {found.name!r} skipped, its weights do not load: {error}", level="warning")
            continue
        walk.accept(step=saved.progress.step)
        if walk.skipped:
            lost = "an unknown number of" if walk.steps_lost is None else walk.steps_lost
            report_event(f"resuming from {found.name!r}: {lost} steps are repeated", level="warning")
        return Resumed(saved, run, TrainerCheckpoint(saved.progress.step, found.name, saved.paths))
    if walk.ending is Ending.FRESH:
        return None
    reasons = "; ".join(f"{look.candidate.name}: {look.reason}" for look in walk.skipped)
    raise ResumeRefused(
        f"none of the {len(walk.skipped)} checkpoints at {checkpointer.store.url!r} can be resumed from: "
        f"{reasons}. Repair them, or start a new run in another directory."
    )


def _candidates(checkpointer: Checkpointer) -> list[StoredCheckpoint]:
    """Return unreadable checkpoints first, because they may be the newest, then the others from newest to oldest."""
    found = checkpointer.checkpoints()
    unreadable = [each for each in found if each.manifest is None]
    return unreadable + [each for each in reversed(found) if each.manifest and each.manifest.kind == KIND]


def _read(checkpointer: Checkpointer, found: StoredCheckpoint, identity: Mapping[str, Any]) -> SavedTrainerState:
    if found.is_newer:
        raise ResumeRefused(f"checkpoint {found.name!r} was written by a later version: {found.damage}")
    if found.damage is not None:
        raise DamagedArchive(found.damage)
    saved = read_state(checkpointer.load(name=found.name), identity)
    if not isinstance(saved.paths.get("state"), str):
        raise DamagedArchive(f"the path of its weights is {saved.paths.get('state')!r}")
    return saved


def _weights_are_unusable(error: tinker.APIStatusError | tinker.RequestFailedError) -> bool:
    """Whether the weights are deleted, damaged or do not fit, so that a retry would fail the same way."""
    if isinstance(error, tinker.RequestFailedError):
        return error.category != types.RequestErrorCategory.Server
    return error.status_code in _UNUSABLE_WEIGHTS
