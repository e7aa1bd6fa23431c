"""Deletes checkpoints of a store by retention rules (``gc``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import typer

from chockstone.checkpoints import Archive, Retention, Store, list_checkpoints, verify_archive
from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    StoreError,
    UnsupportedArchive,
)
from chockstone.checkpoints.reading.listing import is_set_aside
from chockstone.checkpoints.resume.dependents import Dependents
from chockstone.checkpoints.retention.enforcement import apply_retention
from chockstone.checkpoints.retention.policy import KeptCheckpoint, Removal, RetentionPlan
from chockstone.checkpoints.stores.store import PartialWrite
from chockstone.cli.local.targets import list_entries
from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.formatting import format_count, format_duration, format_size, printable
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table, spinner


@dataclass(frozen=True, slots=True)
class CollectionTask:
    """What ``gc`` was asked to do, besides applying a policy."""

    prefix: str
    dry_run: bool
    sweep_partials: bool
    remove_damaged: bool


@dataclass(frozen=True, slots=True)
class CollectionOutcome:
    """What was done, or would be in a dry run."""

    removed: list[Removal]
    failed: list[tuple[Removal, str]]
    kept: list[KeptCheckpoint]
    partials: list[PartialWrite]

    @property
    def freed_bytes(self) -> int:
        return sum(removal.size for removal in self.removed) + sum(partial.size for partial in self.partials)


def collect_garbage(store: Store, policy: Retention, task: CollectionTask, *, now: datetime, as_json: bool) -> int:
    """Carry the policy out, print what became of each checkpoint, and return the exit code."""
    _refuse_typos(store, policy, task.prefix)
    outcome = _carry_out(store, policy, task, now)
    if as_json:
        print_json({"store": store.url, "prefix": task.prefix, "dry_run": task.dry_run, **_document(outcome)})
    else:
        _print(outcome, "would remove" if task.dry_run else "removed")
    return ExitCode.UNREACHABLE if outcome.failed else 0


def _carry_out(store: Store, policy: Retention, task: CollectionTask, now: datetime) -> CollectionOutcome:
    with spinner("verifying the newest checkpoint"):
        collection = apply_retention(
            store,
            task.prefix,
            policy,
            now=now,
            dry_run=task.dry_run,
            verify=True,
            chain_facts_of=Dependents(store.url).chain_facts,
        )
    removed = list(collection.plan.remove if task.dry_run else collection.removed)
    failed = list(collection.failed)
    for removal in _damaged(store, collection.plan) if task.remove_damaged else ():
        try:
            if task.dry_run or store.delete(removal.name):
                removed.append(removal)
        except StoreError as error:
            failed.append((removal, str(error)))
    gone = {removal.name for removal in removed}
    kept = [kept for kept in collection.plan.keep if kept.name not in gone]
    partials = store.sweep(dry_run=task.dry_run) if task.sweep_partials else []
    return CollectionOutcome(removed, failed, kept, partials)


def _refuse_typos(store: Store, policy: Retention, prefix: str) -> None:
    """A rule that protects nothing because its name is misspelled would remove what it was meant to keep."""
    entries = list_entries(store, prefix)
    if unknown := policy.pinned - {entry.name for entry in entries}:
        raise typer.BadParameter(
            f"there is no checkpoint {min(unknown)!r} in this store; pin names as `ls` prints them",
            param_hint="--pin",
        )
    best = policy.keep_best
    if best is None or not entries:
        return
    metrics = {name for c in list_checkpoints(store, prefix) if c.manifest is not None for name in c.manifest.metrics}
    if best.metric not in metrics:
        known = ", ".join(map(printable, sorted(metrics))) or "none"
        raise typer.BadParameter(
            f"no checkpoint has a metric {best.metric!r}, so none would be kept as the best; saved metrics: {known}",
            param_hint="--keep-best",
        )


def _damaged(store: Store, plan: RetentionPlan) -> Iterator[Removal]:
    """Archives to remove as damaged: read once more, in full, and only where a good one remains."""
    suspects = plan.damaged
    if suspects and len(suspects) == len(plan.keep):
        print_stderr("chockstone: no good checkpoint remains, so the damaged ones are kept; `rm` removes them by name")
        return
    for name in suspects:
        try:
            with Archive(store.open(name)) as archive:
                verify_archive(archive)
        except DamagedArchive as error:
            yield Removal(name, _size(store, name), f"damaged: {error}")
        except ForeignArchive as error:
            if is_set_aside(name):  # by a save, which took it for a damaged archive
                yield Removal(name, _size(store, name), f"damaged: {error}")
        except (CheckpointMissing, UnsupportedArchive):
            continue  # gone already, or not ours to judge


def _size(store: Store, name: str) -> int:
    try:
        return store.stat(name).size
    except CheckpointMissing:
        return 0


def _print(outcome: CollectionOutcome, verb: str) -> None:
    rows = [("kept", kept.name, "", printable("; ".join(kept.reasons))) for kept in outcome.kept]
    rows += [(verb, removal.name, format_size(removal.size), printable(removal.reason)) for removal in outcome.removed]
    rows += [("failed", removal.name, format_size(removal.size), printable(why)) for removal, why in outcome.failed]
    for partial in outcome.partials:
        reason = f"unfinished write, {format_duration(partial.age_seconds)} old"
        rows.append((verb, printable(partial.place), format_size(partial.size), reason))
    if rows:
        first_failure = len(outcome.kept) + len(outcome.removed)
        alarming = range(first_failure, first_failure + len(outcome.failed))
        print_table(("ACTION", "NAME", "SIZE", "REASON"), rows, right=("SIZE",), alarming=alarming)
    counts = [format_count(len(outcome.removed), "checkpoint")]
    if outcome.partials:
        counts.append(format_count(len(outcome.partials), "unfinished write"))
    print_line(f"{verb} {' and '.join(counts)}, {format_size(outcome.freed_bytes)}; kept {len(outcome.kept):,}")


def _document(outcome: CollectionOutcome) -> dict[str, Any]:
    return {
        "removed": [_entry(removal) for removal in outcome.removed],
        "failed": [{**_entry(removal), "error": error} for removal, error in outcome.failed],
        "kept": [{"name": kept.name, "reasons": kept.reasons} for kept in outcome.kept],
        "partials": [
            {"place": partial.place, "size_bytes": partial.size, "age_seconds": partial.age_seconds}
            for partial in outcome.partials
        ],
        "freed_bytes": outcome.freed_bytes,
    }


def _entry(removal: Removal) -> dict[str, Any]:
    return {"name": removal.name, "size_bytes": removal.size, "reason": removal.reason}
