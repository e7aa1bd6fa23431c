"""Lists the checkpoints of a store (``ls``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from chockstone.checkpoints import Store, StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.cli.local.targets import require_store
from chockstone.cli.output.formatting import format_count, format_duration, format_metrics, format_size, printable
from chockstone.cli.output.terminal import print_json, print_line, print_table, spinner


def list_store(store: Store, prefix: str, *, now: datetime, as_json: bool) -> None:
    with spinner(f"reading {printable(store.url)}"):
        found = [each for each in list_checkpoints(store, prefix) if not each.is_for_recovery]
    if not found:
        require_store(store)
    if as_json:
        print_json(_document(store, prefix, found, now))
        return
    place = printable(f"{store.url}/{prefix}" if prefix else store.url)
    if not found:
        print_line(f"no checkpoints in {place}")
        return
    print_table(
        ("NAME", "KIND", "STEP", "SIZE", "AGE", "METRICS", "STATE"),
        [_row(checkpoint, now) for checkpoint in found],
        right=("STEP", "SIZE", "AGE"),
        alarming={index for index, checkpoint in enumerate(found) if checkpoint.manifest is None},
    )
    damaged = sum(_state_word(checkpoint) == "damaged" for checkpoint in found)
    total = format_size(sum(checkpoint.size for checkpoint in found))
    alarm = f", {damaged:,} damaged" if damaged else ""
    print_line(f"{format_count(len(found), 'checkpoint')}, {total}{alarm} in {place}")


def expires_at(manifest: Manifest) -> datetime | None:
    """When an archive's own TTL ends; None for never, and for times beyond the calendar."""
    if manifest.ttl_seconds is None:
        return None
    try:
        return manifest.created_at + timedelta(seconds=manifest.ttl_seconds)
    except OverflowError:
        return None


def _row(checkpoint: StoredCheckpoint, now: datetime) -> tuple[str, ...]:
    manifest = checkpoint.manifest
    size = format_size(checkpoint.size)
    if manifest is None:
        age = format_duration((now - checkpoint.modified_at).total_seconds())
        return (
            checkpoint.name,
            "?",
            "?",
            size,
            age,
            "",
            f"{_state_word(checkpoint)}: {printable(checkpoint.damage or '')}",
        )
    age = format_duration((now - manifest.created_at).total_seconds())
    step = "" if manifest.step is None else str(manifest.step)
    return checkpoint.name, manifest.kind, step, size, age, format_metrics(manifest.metrics), _state(manifest, now)


def _state_word(checkpoint: StoredCheckpoint) -> str:
    if checkpoint.manifest is not None:
        return "good"
    return "newer" if checkpoint.is_newer else "damaged"


def _state(manifest: Manifest, now: datetime) -> str:
    words = ["ok"]
    if manifest.pinned:
        words.append("pinned")
    if (end := expires_at(manifest)) is not None:
        words.append("expired" if end <= now else f"expires in {format_duration((end - now).total_seconds())}")
    return ", ".join(words)


def _document(store: Store, prefix: str, found: Sequence[StoredCheckpoint], now: datetime) -> dict[str, Any]:
    return {
        "store": store.url,
        "prefix": prefix,
        "checkpoints": [_entry(checkpoint, now) for checkpoint in found],
        "total_bytes": sum(checkpoint.size for checkpoint in found),
        "damaged": sum(_state_word(checkpoint) == "damaged" for checkpoint in found),
    }


def _entry(checkpoint: StoredCheckpoint, now: datetime) -> dict[str, Any]:
    manifest = checkpoint.manifest
    created_at = checkpoint.modified_at if manifest is None else manifest.created_at
    return {
        "name": checkpoint.name,
        "state": _state_word(checkpoint),
        "damage": checkpoint.damage,
        "size_bytes": checkpoint.size,
        "modified_at": checkpoint.modified_at,
        "age_seconds": (now - created_at).total_seconds(),
        "kind": manifest and manifest.kind,
        "step": manifest and manifest.step,
        "created_at": manifest and manifest.created_at,
        "metrics": manifest and dict(manifest.metrics),
        "pinned": manifest and manifest.pinned,
        "expires_at": manifest and expires_at(manifest),
    }
