"""Resuming: the newest checkpoint of which everything is there, the trainer's state and the run's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tinker
from tinker import types

from chockstone.checkpoints import Checkpoint, Checkpointer
from chockstone.checkpoints.errors import DamagedArchive, ForeignArchive
from chockstone.trainers.cut import KIND, Saved, read_state
from chockstone.trainers.errors import ResumeRefused
from chockstone.trainers.reporting import Announce
from chockstone.trainers.saves import Kept


@dataclass(frozen=True, slots=True)
class Resumed:
    saved: Saved
    run: tinker.TrainingClient
    kept: Kept


async def resume(
    checkpointer: Checkpointer,
    identity: Mapping[str, Any],
    open_run: Callable[[str], Awaitable[tinker.TrainingClient]],
    announce: Announce,
) -> Resumed | None:
    """None if nothing was ever saved here. Walks past what is damaged or gone, and says so.

    Raises ResumeRefused if there is something and none of it can be used: beginning anew would hide the loss.
    """
    reasons: list[str] = []
    for found in await asyncio.to_thread(_candidates, checkpointer):
        try:
            state = await asyncio.to_thread(_load, checkpointer, found)
            saved = await asyncio.to_thread(read_state, state, identity)
            if not isinstance(saved.paths.get("state"), str):
                raise DamagedArchive(f"the path of its weights is {saved.paths.get('state')!r}")
        except (DamagedArchive, ForeignArchive) as error:
            reasons.append(f"{found.name}: {error}")
            announce(f"checkpoint {found.name!r} is walked past: {error}", level="warning")
            continue
        try:
            run = await open_run(saved.paths["state"])
        except (tinker.NotFoundError, tinker.BadRequestError, tinker.RequestFailedError) as error:
            if getattr(error, "category", None) == types.RequestErrorCategory.Server:
                raise  # it may load another time
            reasons.append(f"{found.name}: {error}")
            announce(f"checkpoint {found.name!r} is walked past, its weights do not load: {error}", level="warning")
            continue
        return Resumed(saved, run, Kept(saved.tally.step, found.name, saved.paths))
    if reasons:
        raise ResumeRefused(
            f"none of the {len(reasons)} checkpoints at {checkpointer.store.url!r} can be gone on from: "
            f"{'; '.join(reasons)}. Mend it, or begin anew in another directory."
        )
    return None


def _candidates(checkpointer: Checkpointer) -> list[Checkpoint]:
    """Those that nobody can read first, for they may be the newest; then newest first."""
    found = checkpointer.checkpoints()
    unreadable = [each for each in found if each.manifest is None]
    return unreadable + [each for each in reversed(found) if each.manifest and each.manifest.kind == KIND]


def _load(checkpointer: Checkpointer, found: Checkpoint) -> dict[str, Any]:
    if found.is_newer:
        raise ResumeRefused(f"checkpoint {found.name!r} was written by a later version: {found.damage}")
    if found.damage is not None:
        raise DamagedArchive(found.damage)
    return checkpointer.load(name=found.name)
