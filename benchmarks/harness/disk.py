"""Disk: making files survive a power cut, dropping them from the page cache, and finding a directory on a disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def fsync_tree(path: Path) -> None:
    """Make a file or a whole directory durable, its own name in the parent directory included."""
    for file in _files(path):
        _fsync(file)
    for directory in _directories(path):
        _fsync(directory)
    _fsync(path.parent)


def evict(path: Path) -> None:
    """Drop every file of ``path`` from the page cache, so that the next read comes from the disk."""
    for file in _files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages are not dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds ``path``, as the kernel names it."""
    resolved = path.resolve()
    mounts: dict[Path, str] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split()
        mounts[Path(mount_point.replace("\\040", " "))] = kind
    for ancestor in (resolved, *resolved.parents):
        if ancestor in mounts:
            return mounts[ancestor]
    return "unknown"


def default_directory() -> Path:
    """The first usual temporary directory that is on a disk rather than in memory."""
    for candidate in (Path(os.environ.get("TMPDIR", "/tmp")), Path("/var/tmp"), Path.cwd()):
        if candidate.is_dir() and filesystem_of(candidate) not in MEMORY_FILESYSTEMS:
            return candidate
    raise SystemExit("no temporary directory is on a disk: name one with --directory")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    yield from (entry for entry in path.rglob("*") if entry.is_file())


def _directories(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (entry for entry in path.rglob("*") if entry.is_dir())
        yield path
