"""Exports: members of an archive as files in a new directory, whole or not there at all.

Only for what cannot read an archive in place. Names come from a checked manifest, so they are plain
and relative; still every folder is opened relative to the one above it and no link is followed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.layout import Layout, Member
from chockstone.checkpoints.reading.archive import Archive
from chockstone.checkpoints.restoring.new_directory import new_directory

_STEP_BYTES: Final = 1024**2  # written at once: what else runs on the machine gets its turn in between
_READERS: Final = 4
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
        write_members(archive, chosen, partial, on_bytes=on_bytes, durable=True)
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


def write_members(
    archive: Archive, chosen: Sequence[Member], directory: Path, *, on_bytes: Callable[[int], None], durable: bool
) -> None:
    """Make each member a new file in a directory that is there. ``OSError`` is the directory's; what the
    archive does wrong is a ``CheckpointError``."""
    root = os.open(directory, _FOLDER)
    try:
        for member in chosen:
            _write(archive, member, root, on_bytes, durable=durable)
        if durable:
            for _, _, _, folder in os.fwalk(dir_fd=root, topdown=False):
                os.fsync(folder)
    finally:
        os.close(root)


def _write(archive: Archive, member: Member, root: int, on_bytes: Callable[[int], None], *, durable: bool) -> None:
    with create_file(root, member.name) as file:
        for chunk in (memoryview(content) for content in _chunks(archive, member)):
            for start in range(0, len(chunk), _STEP_BYTES):
                step = chunk[start : start + _STEP_BYTES]
                write_whole(file, step)
                on_bytes(len(step))
        if durable:
            os.fsync(file.fileno())


def create_file(root: int, name: str) -> FileIO:
    """A new file below an open directory, in folders that are made as needed. No link is followed."""
    *folders, last = name.split("/")
    folder = open_folder(root, folders, make=True)
    try:
        descriptor = os.open(last, _NEW_FILE, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
    return FileIO(descriptor, "wb")


def write_whole(file: FileIO, content: memoryview) -> None:
    while len(content):
        content = content[file.write(content) :]


def open_folder(root: int, folders: Sequence[str], *, make: bool) -> int:
    """Open folder after folder; the caller closes the last one. No link is followed."""
    current = os.dup(root)
    for name in folders:
        try:
            if make:
                with suppress(FileExistsError):  # made for an earlier file; anything else the next line refuses
                    os.mkdir(name, dir_fd=current)
            below = os.open(name, _FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


def _chunks(archive: Archive, member: Member) -> Iterator[bytes | memoryview]:
    """The member's bytes in order; while some are written, the next are read and checked."""
    runs = list(_runs(archive.layout, member, archive.run_bytes))
    if len(runs) < 2:
        yield from (archive.read_range(start, stop - start) for start, stop in runs)
        return

    def read(run: tuple[int, int]) -> memoryview:
        start, _, blocks = archive.read_blocks(run[0], run[1] - run[0])
        return blocks[run[0] - start : run[1] - start]

    threads = min(archive.readers, _READERS)
    with ThreadPoolExecutor(threads) as pool:
        waiting = iter(runs)
        pending = deque(pool.submit(read, run) for run in islice(waiting, threads))
        while pending:
            chunk = pending.popleft().result()
            pending.extend(pool.submit(read, run) for run in islice(waiting, 1))
            yield chunk


def _runs(layout: Layout, member: Member, longest: int) -> Iterator[tuple[int, int]]:
    """Where the member's bytes are, cut where blocks end so that each block is read and verified once."""
    blocks = max(1, longest // layout.block_bytes)
    position = member.offset
    while position < member.end:
        index = (position - layout.body_offset) // layout.block_bytes
        stop = min(member.end, layout.block_range(index + blocks - 1)[1])
        yield position, stop
        position = stop
