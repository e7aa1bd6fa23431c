"""Enforcement: plans retention for the checkpoints of a store and removes what the plan does not keep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, StoreError
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.reading.listing import StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.retention.chain_facts import NO_CHAIN, ChainFacts
from chockstone.checkpoints.retention.policy import Removal, Retention, RetentionPlan, plan_retention
from chockstone.checkpoints.stores.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionResult:
    plan: RetentionPlan
    removed: tuple[Removal, ...]
    failed: tuple[tuple[Removal, str], ...] = ()


def apply_retention(
    store: Store,
    prefix: str,
    policy: Retention,
    *,
    now: datetime,
    dry_run: bool = False,
    verify: bool = False,
    chain_facts_of: Callable[[Sequence[str]], ChainFacts] = lambda _: NO_CHAIN,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> RetentionResult:
    """Remove what ``policy`` does not keep below ``prefix``. A delete that fails does not stop the others.

    ``verify``: read every archive that the plan would keep, and plan again without those that are damaged. Without it
    only their heads are read. ``chain_facts_of`` returns what chains of attempts need; it is called again before the
    first removal, because an attempt may have begun meanwhile.
    """
    found = list_checkpoints(store, prefix)
    checkpoints = [c for c in found if c.name != prefix and not c.is_for_recovery]  # below it, not itself
    chain_facts = chain_facts_of([c.name for c in checkpoints])
    plan = plan_retention(checkpoints, policy, now=now, chain_facts=chain_facts)
    trusted: set[str] = set()
    while verify and (unverified := _unverified(checkpoints, plan, trusted)):
        checkpoint = unverified[-1]
        trusted.add(checkpoint.name)
        checkpoints = _verified(store, checkpoint, checkpoints, on_bytes)
        plan = plan_retention(checkpoints, policy, now=now, chain_facts=chain_facts)
    if chain_facts.numbers and plan.remove:
        chain_facts = chain_facts_of([c.name for c in checkpoints])
        plan = plan_retention(checkpoints, policy, now=now, chain_facts=chain_facts)
    removed: list[Removal] = []
    failed: list[tuple[Removal, str]] = []
    for removal in () if dry_run else plan.remove:
        if why := _still_needed(removal.name, chain_facts, failed):
            failed.append((removal, why))
            continue
        try:
            if store.delete(removal.name):
                removed.append(removal)
                log.info("checkpoint removed name=%s bytes=%d reason=%s", removal.name, removal.size, removal.reason)
        except StoreError as error:
            failed.append((removal, str(error)))
            log.warning("checkpoint not removed name=%s error=%s", removal.name, error)
    return RetentionResult(plan, tuple(removed), tuple(failed))


def _still_needed(name: str, chain_facts: ChainFacts, failed: Sequence[tuple[Removal, str]]) -> str:
    """Why it must be kept after all: an archive that depends on it could not be removed; else an empty string."""
    left = {removal.name for removal, _ in failed}
    dependent = next((each for each in chain_facts.dependents.get(name, ()) if each.name in left), None)
    return f"{dependent} depends on it and could not be removed" if dependent else ""


def _unverified(
    checkpoints: Sequence[StoredCheckpoint], plan: RetentionPlan, trusted: set[str]
) -> list[StoredCheckpoint]:
    """The archives that the plan keeps and that were not verified yet; none where the plan removes nothing."""
    if not plan.remove:
        return []
    kept = {kept.name for kept in plan.keep} - trusted
    return [c for c in checkpoints if c.manifest is not None and c.name in kept]


def _verified(
    store: Store, checkpoint: StoredCheckpoint, checkpoints: Sequence[StoredCheckpoint], on_bytes: Callable[[int], None]
) -> list[StoredCheckpoint]:
    """The list after reading this one in full: unchanged if sound, marked if damaged, without it if deleted."""
    try:
        with Archive(store.open(checkpoint.name)) as archive:
            verify_archive(archive, on_bytes=on_bytes)
        return list(checkpoints)
    except CheckpointMissing:
        return [c for c in checkpoints if c is not checkpoint]
    except DamagedArchive as error:
        marked = replace(checkpoint, manifest=None, damage=str(error))
        return [marked if c is checkpoint else c for c in checkpoints]
