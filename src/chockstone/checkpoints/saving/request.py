"""Requests: the options of one save, checked and copied before the call returns."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.format.layout import check_members
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.saving.admission import Admission


class SaveOptions(TypedDict, total=False):
    """The options of a save besides the state."""

    step: int | None
    name: str | None  # default: the step, e.g. "step-00000100"
    kind: str  # default: "weights"
    metrics: Mapping[str, float]  # for Retention(keep_best=…)
    metadata: Mapping[str, Any]  # plain JSON of your own
    files: Mapping[str, bytes]  # extra members, e.g. {"config.json": b"…"}
    pinned: bool  # retention never removes it
    ttl_seconds: float | None
    overwrite: bool
    admission: Admission | None  # for this save, instead of the checkpointer's


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """The checked options of one save; ``name`` is the full name in the store."""

    name: str
    step: int | None
    kind: str
    metrics: Mapping[str, float]
    metadata: Mapping[str, Any]  # Any: plain JSON of the caller's
    files: Mapping[str, bytes]
    pinned: bool
    ttl_seconds: float | None
    overwrite: bool
    admission: Admission
    started: float = field(default_factory=time.perf_counter)


def make_request(options: SaveOptions, *, name: str, admission: Admission) -> SaveRequest:
    """Check the options of a save and copy what the caller could still change. ``name`` is the full one."""
    step = options.get("step")
    return SaveRequest(
        name=name,
        step=None if step is None else operator.index(step),
        kind=options.get("kind", "weights"),
        metrics={metric: float(value) for metric, value in options.get("metrics", {}).items()},
        metadata=copy_metadata(options.get("metadata", {})),
        files=copy_files(options.get("files", {})),
        pinned=bool(options.get("pinned", False)),
        ttl_seconds=check_ttl(options.get("ttl_seconds")),
        overwrite=bool(options.get("overwrite", False)),
        admission=admission,
    )


def copy_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A copy the caller cannot change any more; refuses what is not plain JSON."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"metadata is not plain JSON: {error}") from error
    return copied


def check_ttl(seconds: float | None) -> float | None:
    try:
        return None if seconds is None else float(seconds)
    except OverflowError:
        raise CheckpointError("ttl_seconds is longer than there is time") from None


def copy_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A copy the caller cannot change any more; refuses names that cannot stand in an archive."""
    copied = {name: bytes(content) for name, content in files.items()}
    members = [(STATE, 0), *((name, len(content)) for name, content in copied.items())]
    if why := check_members(members):
        raise CheckpointError(f"files: {why}")
    return copied
