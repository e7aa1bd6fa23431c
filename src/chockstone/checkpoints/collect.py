"""Collection: a retention plan carried out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from chockstone.checkpoints.archive import Archive
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, StoreError
from chockstone.checkpoints.reader import verify_archive
from chockstone.checkpoints.retention import Removal, Retention, RetentionPlan, plan_retention
from chockstone.checkpoints.store import Store
from chockstone.checkpoints.survey import Checkpoint, survey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collection:
    plan: RetentionPlan
    removed: tuple[Removal, ...]
    failed: tuple[tuple[Removal, str], ...] = ()


def collect(
    store: Store,
    prefix: str,
    policy: Retention,
    *,
    now: datetime,
    dry_run: bool = False,
    verify: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Collection:
    """Remove what ``policy`` does not keep below ``prefix``. One failing delete does not stop the others.

    ``verify`` reads in full whatever the plan would keep, and plans again without those that turn out
    to be damaged, so that only archives whose every digest was right a moment ago count. Without it
    their heads must do.
    """
    found = survey(store, prefix)
    checkpoints = [c for c in found if c.name != prefix and not c.is_for_recovery]  # below it, not itself
    plan = plan_retention(checkpoints, policy, now=now)
    trusted: set[str] = set()
    while verify and (doubtful := _doubtful(checkpoints, plan, trusted)):
        checkpoint = doubtful[-1]
        trusted.add(checkpoint.name)
        checkpoints = _looked_at(store, checkpoint, checkpoints, on_bytes)
        plan = plan_retention(checkpoints, policy, now=now)
    removed: list[Removal] = []
    failed: list[tuple[Removal, str]] = []
    for removal in () if dry_run else plan.remove:
        try:
            if store.delete(removal.name):
                removed.append(removal)
                log.info("checkpoint removed name=%s bytes=%d reason=%s", removal.name, removal.size, removal.reason)
        except StoreError as error:
            failed.append((removal, str(error)))
            log.warning("checkpoint not removed name=%s error=%s", removal.name, error)
    return Collection(plan, tuple(removed), tuple(failed))


def _doubtful(checkpoints: Sequence[Checkpoint], plan: RetentionPlan, trusted: set[str]) -> list[Checkpoint]:
    """What a plan relies on and nobody has read yet; nothing where it removes nothing."""
    if not plan.remove:
        return []
    kept = {kept.name for kept in plan.keep} - trusted
    return [c for c in checkpoints if c.manifest is not None and c.name in kept]


def _looked_at(
    store: Store, checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint], on_bytes: Callable[[int], None]
) -> list[Checkpoint]:
    """The survey, with this one read in full: unchanged if good, marked if damaged, without it if gone."""
    try:
        with Archive(store.open(checkpoint.name)) as archive:
            verify_archive(archive, on_bytes=on_bytes)
        return list(checkpoints)
    except CheckpointMissing:
        return [c for c in checkpoints if c is not checkpoint]
    except DamagedArchive as error:
        marked = replace(checkpoint, manifest=None, damage=str(error))
        return [marked if c is checkpoint else c for c in checkpoints]
