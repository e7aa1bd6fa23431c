"""Exports: members of an archive as files in a new directory, whole or not there at all.

Only for what cannot read an archive in place. Names come from a checked manifest, so they are plain
and relative; still every folder is opened relative to the one above it and no link is followed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from chockstone.checkpoints.archive import Archive
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.layout import Member
from chockstone.checkpoints.new_directory import new_directory

_RUN_BYTES: Final = 8 * 1024**2
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def export_members(
    archive: Archive,
    directory: Path,
    *,
    members: Sequence[str] = (),
    on_bytes: Callable[[int], None] = lambda _: None,
) -> tuple[Member, ...]:
    """Extract members into ``directory``, which must not exist; its parent must.

    ``members`` are names or patterns such as ``*.json``; none means all. Bytes are verified as the
    archive's policy asks. On return everything is durable. When this raises nothing is left behind;
    a killed process leaves a ``.export-….partial`` beside, and never a part of ``directory``.
    """
    chosen = choose_members(archive, members)
    with new_directory(directory) as partial:
        _write_all(archive, chosen, partial, on_bytes)
    return chosen


def choose_members(archive: Archive, patterns: Sequence[str]) -> tuple[Member, ...]:
    """The members that match any of the patterns, in file order; every pattern must match one."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in archive.members):
            raise ExportRefused(
                f"no member of the archive matches {pattern!r}; it holds {', '.join(archive.members) or 'none'}"
            )
    return tuple(
        member
        for name, member in archive.members.items()
        if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def _write_all(archive: Archive, chosen: Sequence[Member], partial: Path, on_bytes: Callable[[int], None]) -> None:
    root = os.open(partial, _FOLDER)
    try:
        for member in chosen:
            _write(archive, member, root, on_bytes)
        for _, _, _, folder in os.fwalk(dir_fd=root, topdown=False):
            os.fsync(folder)
    finally:
        os.close(root)


def _write(archive: Archive, member: Member, root: int, on_bytes: Callable[[int], None]) -> None:
    *folders, name = member.name.split("/")
    folder = _enter(root, folders)
    try:
        descriptor = os.open(name, _NEW_FILE, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for chunk in _chunks(archive, member):
            rest = memoryview(chunk)
            while len(rest):
                rest = rest[file.write(rest) :]
            on_bytes(len(chunk))
        os.fsync(file.fileno())


def _enter(root: int, folders: Sequence[str]) -> int:
    """Make and open folder after folder; the caller closes the last one."""
    current = os.dup(root)
    for name in folders:
        try:
            with suppress(FileExistsError):  # made for an earlier member; anything else the next line refuses
                os.mkdir(name, dir_fd=current)
            below = os.open(name, _FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


def _chunks(archive: Archive, member: Member) -> Iterator[bytes]:
    """The member's bytes, cut where blocks end so that each block is read and verified once."""
    layout = archive.layout
    run = max(1, _RUN_BYTES // layout.block_bytes)
    position = member.offset
    while position < member.end:
        index = (position - layout.body_offset) // layout.block_bytes
        stop = min(member.end, layout.block_range(index + run - 1)[1])
        yield archive.read_range(position, stop - position)
        position = stop
