"""Foreign checkpoints: one checkpoint of another program, opened and checked, with an account of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

FormatName = Literal["torch", "safetensors", "dcp", "lightning", "hf", "orbax"]


class TakenPart(NamedTuple):
    source: str  # the file that the part comes from
    key: str  # where it is in the state
    tensors: int
    size_bytes: int  # of the tensors


class LeftOut(NamedTuple):
    source: str  # a file or a key that is not imported
    why: str


@dataclass(frozen=True, slots=True)
class ForeignCheckpoint:
    """The state of a checkpoint of another program. Its tensors are views of mapped files wherever that is possible."""

    format: FormatName
    evidence: str  # what the format was recognised by
    state: Mapping[str, Any]  # Any: whatever the tree of an archive can hold
    taken: tuple[TakenPart, ...]
    left_out: tuple[LeftOut, ...] = ()
    step: int | None = None
    step_source: str = ""  # where the step was found
    files: Mapping[str, Path | bytes] = field(default_factory=dict)  # further members of the archive
    check: Callable[[], None] = lambda: None  # raises ImportRefused if a file has changed since it was opened
