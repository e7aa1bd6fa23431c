"""File sinks: an archive is written to a partial file of its full size, which is renamed when it is complete.

The process that began the archive holds a lock on the partial file. Other processes write to it with a ticket and
without a lock. So when the owner dies the file is an orphan, even if others still write to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from chockstone.checkpoints.errors import CheckpointExists, StoreError, StoreFull
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.posix import (
    ensure_directory,
    explain,
    explained,
    fsync_directory,
    make_directories,
    move_if_absent,
)
from chockstone.checkpoints.stores.shared_writes import (
    Extents,
    PartReceipt,
    Ticket,
    incomplete,
    too_long,
    written_twice,
)
from chockstone.checkpoints.stores.store import SUFFIX

_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_LABEL: Final = 100  # characters of the archive's name in that of its partial file
_TRIES: Final = 100  # at a name whose directory is removed between its making and its use


class FileSink:
    """An archive that this process began, and commits or aborts."""

    def __init__(self, final: Path, partials: Path, *, name: str, size: int) -> None:
        self._final = final
        self._name = name
        self._size = size
        self._extents = Extents()
        with explained(f"cannot write to {partials}"):
            ensure_directory(partials)
            self._partial, self._descriptor = create_locked(partials, final.stem[:_LABEL])
            _set_direct(self._descriptor, on=True)
        try:
            self._allocate()
        except BaseException:
            self.abort()
            raise

    def _allocate(self) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, self._size)
        except OSError as error:
            trouble = explain(error, f"cannot reserve {self._size} bytes for {self._final}")
            if isinstance(trouble, StoreFull):
                raise trouble from error  # other errors: no fallocate here, writing will tell

    def write_at(self, offset: int, data: memoryview) -> None:
        if offset + len(data) > self._size:
            raise too_long(str(self._final), self._size)
        with explained(f"cannot write {self._final}"):
            _write(self._descriptor, offset, data)
        self._extents.add(offset, offset + len(data))

    def share(self) -> str:
        with explained(f"cannot share {self._final}"):
            if os.fstat(self._descriptor).st_size < self._size:
                os.ftruncate(self._descriptor, self._size)  # no fallocate here
            os.fsync(self._descriptor)  # its length, which other hosts look at
        return Ticket(self._name, self._size, self._partial.name).encode()

    def settle(self, receipts: Sequence[str]) -> None:
        archive = str(self._final)
        for text in receipts:
            receipt = PartReceipt.decode(text, archive=archive, size=self._size, place=self._partial.name)
            for one in receipt.ranges:
                if not self._extents.add(one.start, one.end):
                    raise written_twice(archive, one.start, one.end)

    def commit(self, *, overwrite: bool) -> None:
        if missing := self._extents.missing(self._size):
            raise incomplete(str(self._final), missing)
        with explained(f"cannot commit {self._final}"):
            os.fsync(self._descriptor)
            move = os.replace if overwrite else move_if_absent
            try:
                changed = put(self._final, lambda: move(self._partial, self._final))
            except FileExistsError:
                self.abort()
                raise CheckpointExists(
                    f"checkpoint {self._name!r} exists already at {self._final}; choose another name, "
                    "delete it first, or ask for overwrite"
                ) from None
            try:
                for directory in changed:
                    fsync_directory(directory)
            except OSError:
                if not overwrite:
                    self._final.unlink(missing_ok=True)  # not known to be durable, so not to be seen
                raise
        self._close()

    def abort(self) -> None:
        try:
            if self._descriptor >= 0:
                self._partial.unlink(missing_ok=True)
        finally:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SharedFile:
    """A part of an archive that another process began."""

    def __init__(self, final: Path, partials: Path, *, name: str, size: int, ticket: str) -> None:
        """Raises StoreError unless the ticket names the partial file of such an archive, still being written."""
        self._final = final
        self._size = size
        self._extents = Extents()
        self._place = Ticket.decode(ticket, archive=name, size=size).place
        if not re.fullmatch(rf"{re.escape(final.stem[:_LABEL])}-[0-9a-f]{{16}}{re.escape(SUFFIX)}", self._place):
            raise StoreError(f"cannot join the writing of {final}: {self._place[:300]!r} is no partial file of it")
        self._descriptor = _open_partial(partials / self._place, size)
        _set_direct(self._descriptor, on=True)

    def write_at(self, offset: int, data: memoryview) -> None:
        if self._descriptor < 0:
            raise StoreError(f"cannot write {self._final}: this process has finished its part of it")
        if offset + len(data) > self._size:
            raise too_long(str(self._final), self._size)
        with explained(f"cannot write {self._final}"):
            _write(self._descriptor, offset, data)
        self._extents.add(offset, offset + len(data))

    def finish(self) -> str:
        with explained(f"cannot write {self._final}"):
            os.fsync(self._descriptor)  # the owner's would not reach what this host has yet to send
        self.close()
        return PartReceipt(self._place, self._extents.ranges()).encode()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open_partial(path: Path, size: int) -> int:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise StoreError(
            f"cannot join the writing of {path}: it is not there. Either the process that began it has ended, or this "
            "host does not see the same directory; save to one that all hosts share"
        ) from None
    except OSError as error:
        raise explain(error, f"cannot join the writing of {path}") from error
    facts = os.fstat(descriptor)
    # a second link is what a commit leaves that died half way: to write there would be to write into the archive
    if stat.S_ISREG(facts.st_mode) and facts.st_size == size and facts.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    raise StoreError(f"cannot join the writing of {path}: it is not the file of {size} bytes that is being written")


def _write(descriptor: int, offset: int, data: memoryview) -> None:
    direct = True
    while len(data):
        try:
            written = os.pwrite(descriptor, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _set_direct(descriptor, on=False)  # this file system only said so now
            continue
        if written % PAGE:
            direct = _set_direct(descriptor, on=False)  # the rest is no longer aligned
        data = data[written:]
        offset += written


def put(final: Path, act: Callable[[], None]) -> list[Path]:
    """Make the directory of ``final`` and call ``act``, which creates it; again if that directory was pruned between.

    Returns the directories to fsync. None is fsynced between the two, so that a pruner has little time to come between.
    """
    changed = [final.parent]
    for tries_left in reversed(range(_TRIES)):
        try:
            changed += make_directories(final.parent)
            act()
        except FileNotFoundError:
            if not tries_left:
                raise
        else:
            break
    return list(dict.fromkeys(changed))


def create_locked(directory: Path, label: str) -> tuple[Path, int]:
    """A new file, locked by this process."""
    while True:
        path = directory / f"{label}-{secrets.token_hex(8)}{SUFFIX}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            mine = lock(descriptor)
        except OSError:
            mine = True  # a file system without locks; sweeps go by age there
        if mine and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # a sweep got hold of it between the two calls, and removes it


def lock(descriptor: int) -> bool:
    """Try to lock this file; False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _set_direct(descriptor: int, *, on: bool) -> bool:
    """Switch O_DIRECT where the file system supports it; whether it is on now."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags | _DIRECT if on else flags & ~_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
        flags = wanted
    return bool(flags & _DIRECT)
