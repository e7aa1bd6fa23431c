"""Mapped files: regular files of a checkpoint, mapped privately, and the directory that holds them.

A file is opened once and never through a link, except for the path that the user named. Its bytes are read from the
disk when a tensor is written, so a checkpoint larger than the memory can be read.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from chockstone.checkpoints.errors import DamagedArchive, ImportRefused
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.manifest import parse_json

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_JSON_BYTES: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class MappedFile:
    """The bytes of one file. It must not change while they are used; ``check`` tells whether it did."""

    name: str  # what messages call it
    path: Path
    mapping: mmap.mmap
    memory: Bytes  # of the mapping; writing to it does not change the file
    facts: tuple[int, ...]

    @classmethod
    def open(cls, path: Path, *, name: str | None = None) -> Self:
        """Raises ImportRefused unless there is a regular file, and no link, that is not empty."""
        shown = name or path.name
        with _explained(shown):
            descriptor = os.open(path, _READ)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise ImportRefused(f"{shown!r} is not a regular file; only files and directories are imported")
                if not status.st_size:
                    raise ImportRefused(f"{shown!r} is empty; its writer was interrupted. Import an older checkpoint")
                mapping = mmap.mmap(
                    descriptor, status.st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
            finally:
                os.close(descriptor)
        return cls(shown, path, mapping, np.frombuffer(mapping, dtype=np.uint8), _facts(status))

    @property
    def size(self) -> int:
        return len(self.memory)

    def read(self, start: int, size: int) -> bytes:
        """Bytes from ``start`` on; fewer where the file ends."""
        return self.memory[start : start + size].tobytes()

    def content(self) -> bytes:
        return self.memory.tobytes()

    def json(self) -> Any:  # Any: JSON of another program
        """The file as JSON. Raises ImportRefused if it is none, or too large to be any."""
        if self.size > _MAX_JSON_BYTES:
            raise ImportRefused(f"{self.name!r} has {self.size} bytes, more than a JSON file of a checkpoint can have")
        try:
            return parse_json(self.read(0, self.size), what=f"{self.name!r}")
        except DamagedArchive as error:
            raise ImportRefused(f"{error}. Import another checkpoint, or copy this one again") from error

    def check(self) -> None:
        """Raise ImportRefused if the file has changed since it was opened."""
        with _explained(self.name):
            status = os.lstat(self.path)
        if _facts(status) != self.facts:
            raise ImportRefused(
                f"{self.name!r} was changed while it was imported; nothing was stored. Import it again when its "
                "writer has finished"
            )


class SourceDirectory:
    """The directory of a checkpoint: the names in it, and its files by name."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self.name = self.path.name
        self.opened: dict[str, MappedFile] = {}
        with _explained(self.name), os.scandir(self.path) as entries:
            self.names = tuple(sorted(entry.name for entry in entries))

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def open(self, name: str) -> MappedFile:
        """A file of this directory. Raises ImportRefused for names with a slash, links and what is no regular file."""
        if "/" in name or name in ("", ".", ".."):
            raise ImportRefused(
                f"{self.name!r} refers to {name[:200]!r}, which is not a file of its own directory; nothing was read. "
                "Import checkpoints of programs that you trust"
            )
        if name not in self.opened:
            self.opened[name] = MappedFile.open(self.path / name)
        return self.opened[name]

    def check(self) -> None:
        """Raise ImportRefused if a file that was opened has changed since."""
        for file in self.opened.values():
            file.check()


def resolve(path: Path) -> Path:
    """The file or directory that the user named; a link is followed here and nowhere else."""
    with _explained(str(path)):
        return Path(os.path.realpath(path, strict=True))


def _facts(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ImportRefused(f"there is no {name!r}; check the path, or copy the checkpoint again") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ImportRefused(
                f"{name!r} is a link, and an import reads only the files of the directory itself. Copy the checkpoint "
                "with its files: `cp -rL SOURCE COPY`"
            ) from None
        raise ImportRefused(f"cannot read {name!r}: {error.strerror or error}") from error
