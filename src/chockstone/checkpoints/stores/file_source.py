"""Archive files open for reading: mapped, or read past the page cache."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Final

from chockstone.checkpoints.errors import CheckpointMissing, TruncatedArchive
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.runtime.threads import has_low_priority
from chockstone.checkpoints.stores.posix import explain, explained

_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_DIRECT_READ_BYTES: Final = 64 * 1024
_RUN_BYTES: Final = 2 * 1024**2  # what was read is still in the cache when it is checked and copied


def open_file(path: Path) -> FileSource:
    try:
        return FileSource(path)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            raise CheckpointMissing(f"there is no archive file {str(path)!r}") from None
        raise explain(error, f"cannot open {path}") from error


class FileSource:
    """An archive file. Large reads of whole pages into aligned memory bypass the page cache."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._direct = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            facts = os.fstat(self._descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
            self._size = facts.st_size
            self._direct = _reopen_direct(self._descriptor)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self._size

    @property
    def run_bytes(self) -> int:
        return _RUN_BYTES

    @property
    def readers(self) -> int:
        # These threads run beside the one that asks; a low-priority thread leaves the cores to others.
        return 1 if has_low_priority() else 3

    def map(self) -> memoryview | None:
        if self._size == 0:
            return None
        with explained(f"cannot map {self._path}"):
            try:
                return memoryview(mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_COPY))
            except ValueError:  # longer than the file is by now
                raise TruncatedArchive(f"{self._path} has become shorter than its {self._size} bytes") from None

    def descriptor(self) -> int | None:
        return self._descriptor

    def read_into(self, offset: int, target: memoryview) -> None:
        whole_pages = offset % PAGE == 0 and len(target) % PAGE == 0
        direct = self._direct >= 0 and whole_pages and len(target) >= _DIRECT_READ_BYTES
        descriptor = self._direct if direct else self._descriptor
        with explained(f"cannot read {self._path}"):
            while len(target):
                try:
                    count = os.preadv(descriptor, [target], offset)
                except OSError as error:
                    if error.errno != errno.EINVAL or descriptor == self._descriptor:
                        raise
                    descriptor = self._descriptor  # memory that is not aligned, or a file system without direct reads
                    continue
                if count == 0:
                    raise TruncatedArchive(f"{self._path} ends while it is being read", where=offset)
                target = target[count:]
                offset += count

    def close(self) -> None:
        for descriptor in (self._descriptor, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._direct = -1


def _reopen_direct(descriptor: int) -> int:
    """A second descriptor of the same file for direct reads, or -1 where there are none."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | _DIRECT) if _DIRECT else -1
    except OSError:
        return -1
