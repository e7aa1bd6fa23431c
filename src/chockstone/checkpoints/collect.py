"""Collection: a retention plan carried out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from chockstone.checkpoints.archive import Archive, verify_archive
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, StoreError
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
    store: Store, prefix: str, policy: Retention, *, now: datetime, dry_run: bool = False, verify: bool = False
) -> Collection:
    """Remove what ``policy`` does not keep below ``prefix``. One failing delete does not stop the others.

    ``verify`` reads the newest archives in full first, so that "the newest good one" is one whose
    every digest was right a moment ago; without it the heads must do.
    """
    checkpoints = survey(store, prefix)
    if verify:
        checkpoints = _with_newest_verified(store, checkpoints)
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


def _with_newest_verified(store: Store, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Mark archives as damaged, newest first, until one turns out to be good."""
    out = list(checkpoints)
    for index in reversed(range(len(out))):
        checkpoint = out[index]
        if checkpoint.manifest is None:
            continue
        try:
            with Archive(store.open(checkpoint.name)) as archive:
                verify_archive(archive)
            return out
        except CheckpointMissing:
            continue
        except DamagedArchive as error:
            out[index] = Checkpoint(checkpoint.name, checkpoint.size, checkpoint.modified_at, None, str(error))
    return out
