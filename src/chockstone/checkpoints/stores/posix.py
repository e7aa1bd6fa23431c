"""POSIX: durable directories, renames that never replace, and errors that say what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chockstone.checkpoints.errors import LocalResourceError, StoreDenied, StoreError, StoreFull, StoreUnreachable

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_ADVICE: dict[int, tuple[type[StoreError], str]] = {
    errno.ENOSPC: (StoreFull, "the disk is full; free space, or let `chockstone checkpoints gc` do it"),
    errno.EDQUOT: (StoreFull, "the disk quota is used up; free space or ask for more"),
    errno.EFBIG: (StoreFull, "the file system or a ulimit does not allow files this large"),
    errno.EACCES: (StoreDenied, "permission denied; check the owner and mode of the directory"),
    errno.EPERM: (StoreDenied, "not permitted; check the owner and mode of the directory"),
    errno.EROFS: (StoreDenied, "the file system is read-only; choose another directory or remount it"),
    errno.EMFILE: (StoreUnreachable, "this process has too many files open; raise `ulimit -n`"),
    errno.ENFILE: (StoreUnreachable, "the machine has too many files open"),
    errno.ENOTDIR: (StoreDenied, "a part of the path is not a directory"),
}


def explain(error: OSError, doing: str) -> StoreError:
    """The StoreError for a failed system call, with advice where there is any."""
    kind, advice = _ADVICE.get(error.errno or 0, (StoreUnreachable, error.strerror or repr(error)))
    return kind(f"{doing}: {advice}")


@contextmanager
def explained(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, doing) from error


@contextmanager
def local_errors(doing: str) -> Iterator[None]:
    """For our own disk: what fails there says nothing about the archive, nor about the store it is in."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            advice = "no space is left on a disk of this machine; free some, or set TMPDIR to a larger disk"
            raise LocalResourceError(f"{doing}: {advice}") from error
        raise LocalResourceError(str(explain(error, doing))) from error


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_directory(path: Path) -> None:
    """Make ``path`` and its parents; each one made is durable."""
    for changed in make_directories(path):
        fsync_directory(changed)


def make_directories(path: Path) -> list[Path]:
    """Make ``path`` and its parents. Returns the directories in which one was made: fsync them."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return []
    except FileNotFoundError:
        if path.parent == path:
            raise
        changed = make_directories(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path)  # once more and no oftener: below a dangling link, or in /proc, there is no end to it
        return [*changed, path.parent]
    return [path.parent]


def move_if_absent(source: Path, target: Path) -> None:
    """Give ``source`` the name ``target``; FileExistsError if it is taken. Atomic either way."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_noreplace(source, target)
        return
    os.unlink(source)


def put_file(path: Path, content: bytes, *, may_replace: bool) -> None:
    """Whole and durable on return. Raises FileExistsError, OSError."""
    spare = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with spare.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move = os.replace if may_replace else move_if_absent
        move(spare, path)
    finally:
        spare.unlink(missing_ok=True)
    fsync_directory(path.parent)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append a record with one write, or several if the disk takes only a part. On an error, remove all of it again.

    Only one process may append to the file. On return the record survives a kill of the process, not a power loss.
    """
    size_bytes = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        raise


def _rename_noreplace(source: Path, target: Path) -> None:
    """Linux's renameat2, for file systems without hard links."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOTSUP, "this file system has no hard links and this system no renameat2", str(target))
    at_fdcwd, noreplace = -100, 1
    if renameat2(at_fdcwd, os.fsencode(source), at_fdcwd, os.fsencode(target), noreplace) != 0:
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            raise OSError(number, "this file system has neither hard links nor renames that never replace", str(target))
        raise OSError(number, os.strerror(number), str(target))
