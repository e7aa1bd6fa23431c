"""Contestant: one way to save and restore a state, ours or a peer's.

Every contestant picks a fresh name for every save and returns the path it wrote (a file or a directory), so
the caller can measure, evict and remove it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.checkpoints.states import State

Save = Callable[[State], Path]
"""Durable on return."""

Start = Callable[[State], Callable[[], Path]]
"""Returns as soon as the caller may change the state again; calling the result waits until it is durable."""

Restore = Callable[[Path, State], None]
"""Fills the tensors of the state in place."""


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    save: Save | None = None
    start: Start | None = None
    restore: Restore | None = None
    in_place: bool = True  # False: ``restore`` reads every byte but leaves the state alone
    slow: bool = False  # left out of quick runs, and measured fewer times where it takes a minute
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Absent:
    """A contestant that cannot take part here, and why."""

    name: str
    reason: str


class FreshNames:
    """Names never used before in this run, under one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()

    def next(self, stem: str, suffix: str = "") -> Path:
        return self._directory / f"{stem}-{next(self._numbers):04d}{suffix}"
