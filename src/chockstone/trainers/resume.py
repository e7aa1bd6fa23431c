"""Resuming: the newest checkpoint of which everything is there, the trainer's state and the run's."""

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
from chockstone.trainers.reports.reporting import Announce
from chockstone.trainers.saves import KeptTrainerSave
from chockstone.trainers.snapshot import KIND, SavedTrainerState, read_state

_ABOUT_THE_WEIGHTS: Final = {400, 404, 410, 422}


@dataclass(frozen=True, slots=True)
class Resumed:
    saved: SavedTrainerState
    run: tinker.TrainingClient
    kept: KeptTrainerSave


async def resume(
    checkpointer: Checkpointer,
    identity: Mapping[str, Any],
    open_run: Callable[[str], Awaitable[tinker.TrainingClient]],
    announce: Announce,
) -> Resumed | None:
    """None if nothing was ever saved here. Walks past what is damaged or gone, and says so.

    Raises ResumeRefused if there is something and none of it can be used: beginning anew would hide the loss. What
    cannot be read now is raised as it is: neither an older one nor a new beginning may stand in for it.
    """
    walk = WalkBack(await asyncio.to_thread(_candidates, checkpointer))
    for found in walk:
        step = found.manifest.step if found.manifest else None
        try:
            saved = await asyncio.to_thread(_read, checkpointer, found, identity)
        except CheckpointError as error:
            walk.saw(judge(error), str(error), step=step, is_sure=True)  # it was read twice by those below
            if walk.is_over:
                raise
            announce(f"checkpoint {found.name!r} is walked past: {error}", level="warning")
            continue
        try:
            run = await open_run(saved.paths["state"])
        except (tinker.APIStatusError, tinker.RequestFailedError) as error:
            if not _is_about_the_weights(error):
                raise  # it may load another time
            walk.saw(Verdict.CORRUPT, str(error), step=step, is_sure=True)
            announce(f"checkpoint {found.name!r} is walked past, its weights do not load: {error}", level="warning")
            continue
        walk.took(step=saved.tally.step)
        if walk.passed:
            lost = "an unknown number of" if walk.steps_lost is None else walk.steps_lost
            announce(f"the run goes on from {found.name!r}: {lost} steps are done again", level="warning")
        return Resumed(saved, run, KeptTrainerSave(saved.tally.step, found.name, saved.paths))
    if walk.ending is Ending.FRESH:
        return None
    reasons = "; ".join(f"{look.candidate.name}: {look.reason}" for look in walk.passed)
    raise ResumeRefused(
        f"none of the {len(walk.passed)} checkpoints at {checkpointer.store.url!r} can be gone on from: "
        f"{reasons}. Mend it, or begin anew in another directory."
    )


def _candidates(checkpointer: Checkpointer) -> list[StoredCheckpoint]:
    """Those that nobody can read first, for they may be the newest; then newest first."""
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


def _is_about_the_weights(error: tinker.APIStatusError | tinker.RequestFailedError) -> bool:
    """Whether they are gone, damaged or do not fit, so that asking again finds the same."""
    if isinstance(error, tinker.RequestFailedError):
        return error.category != types.RequestErrorCategory.Server
    return error.status_code in _ABOUT_THE_WEIGHTS
