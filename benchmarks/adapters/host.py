"""Hosts: training frameworks that save in their own way, and through Chockstone.

A host file has a function that opens both ways for one training, and a ``Host`` that names them:

    @contextmanager
    def open_ways(training: Training, directory: Path) -> Iterator[Ways]:
        import some_host                                    # here, so that a missing package is reported as "not run"
        ...
        yield Ways(own=Way(start, restore), ours=Way(start, restore))

    HOST = Host("some-host", own="save_checkpoint", ours="ChockstoneCheckpoint", package="some-host", open=open_ways)

``run.py`` lists the hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adapters.training import Training

Finish = Callable[[], Path]
"""Waits until the checkpoint is on the disk and returns the file or directory that holds all of it."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save and restore the training that it was opened for."""

    start: Callable[[], Finish]  # saves under a new name; returns as soon as training may continue
    restore: Callable[[Path], None]  # fills the training's model and optimizer from what ``Finish`` returned


@dataclass(frozen=True, slots=True)
class Ways:
    own: Way  # what it leaves is fsynced by the measure, in the time that counts
    ours: Way  # durable when ``Finish`` returns


@dataclass(frozen=True, slots=True)
class Host:
    name: str  # in tables, in JSON, and for --only
    own: str  # what users call to save in the host's own way: the name of the row
    ours: str  # what they use to save through Chockstone
    package: str  # whose version is kept in the JSON
    open: Callable[[Training, Path], AbstractContextManager[Ways]]  # the directory is empty and on a disk

    @property
    def own_row(self) -> str:
        return f"{self.name}: {self.own}"

    @property
    def our_row(self) -> str:
        return f"{self.name} through chockstone: {self.ours}"
