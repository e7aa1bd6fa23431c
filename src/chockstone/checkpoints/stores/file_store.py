"""A store in a directory: ``<root>/<name>.tar``, with writes in progress in ``<root>/.partial``.

A writer locks its partial file. The lock ends with the process, so a partial file that can be locked is an orphan.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, InvalidName
from chockstone.checkpoints.stores.file_sink import FileSink, SharedFile, lock, put
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.checkpoints.stores.posix import ensure_directory, explain, explained, fsync_directory
from chockstone.checkpoints.stores.store import (
    SUFFIX,
    ArchiveSource,
    PartialWrite,
    SharedSink,
    Sink,
    StoreEntry,
    check_name,
)

PARTIAL: Final = ".partial"
_UNLOCKED_ORPHAN_SECONDS: Final = 24 * 3600.0


class FileStore:
    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def path(self, name: str) -> Path:
        """Where the archive of that name is, or would be."""
        check_name(name)
        return self.root / f"{name}{SUFFIX}"

    def begin(self, name: str, size: int) -> Sink:
        return FileSink(self.path(name), self.root / PARTIAL, name=name, size=size)

    def join(self, name: str, size: int, ticket: str) -> SharedSink:
        return SharedFile(self.path(name), self.root / PARTIAL, name=name, size=size, ticket=ticket)

    def unit_bytes(self, _size: int) -> int:
        return 1

    def open(self, name: str) -> ArchiveSource:
        try:
            return open_file(self.path(name))
        except CheckpointMissing:
            raise CheckpointMissing(f"checkpoint {name!r} is not in {self.url}") from None

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        if prefix:
            check_name(prefix)
        found: list[StoreEntry] = []
        if prefix:
            found += self._entry(prefix)
        pending = [self.root / prefix]
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(directory) as items:
                    for item in items:
                        if item.name.startswith("."):
                            continue
                        path = Path(item.path)
                        if item.is_dir(follow_symlinks=False):
                            pending.append(path)
                        elif path.suffix == SUFFIX:
                            found += self._entry(path.relative_to(self.root).as_posix()[: -len(SUFFIX)])
            except FileNotFoundError:
                continue  # removed meanwhile, or never there: nothing is listed below it
            except OSError as error:
                raise explain(error, f"cannot list {directory}") from error
        return iter(sorted(found, key=lambda entry: entry.name))

    def _entry(self, name: str) -> list[StoreEntry]:
        try:
            return [self.stat(name)]
        except (CheckpointMissing, InvalidName):
            return []  # gone meanwhile, or a file that is not ours

    def stat(self, name: str) -> StoreEntry:
        path = self.path(name)
        try:
            facts = os.stat(path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ELOOP}:
                raise CheckpointMissing(f"checkpoint {name!r} is not in {self.url}") from None
            raise explain(error, f"cannot look at {path}") from error
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointMissing(f"{path} is not a file")
        modified_at = datetime.fromtimestamp(facts.st_mtime, UTC)
        return StoreEntry(name, facts.st_size, modified_at, (facts.st_dev, facts.st_ino), facts.st_nlink)

    def delete(self, name: str) -> bool:
        path = self.path(name)
        with explained(f"cannot delete {path}"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return False
            with suppress(FileNotFoundError):  # pruned with what was in it
                fsync_directory(path.parent)
        return True

    def copy(self, name: str, target: str, *, overwrite: bool = False) -> None:
        source, final = self.path(name), self.path(target)
        spare = self.root / PARTIAL / f"{secrets.token_hex(8)}.link"
        with explained(f"cannot copy {source} to {final}"):
            if overwrite:
                ensure_directory(spare.parent)

            def link() -> None:
                if not overwrite:
                    os.link(source, final)
                    return
                with _held(source):
                    os.link(source, spare)
                    try:
                        os.replace(spare, final)
                    finally:
                        spare.unlink(missing_ok=True)  # rename leaves it when both are one file already

            try:
                changed = put(final, link)
            except FileNotFoundError:
                raise CheckpointMissing(f"checkpoint {name!r} is not in {self.url}") from None
            except FileExistsError:
                raise CheckpointExists(f"checkpoint {target!r} exists already in {self.url}") from None
            for directory in changed:
                fsync_directory(directory)

    def free_bytes(self) -> int | None:
        directory = self.root
        while True:
            try:
                facts = os.statvfs(directory)
            except FileNotFoundError:
                directory = directory.parent  # not made yet: its parent's disk is the one
                continue
            except OSError as error:
                raise explain(error, f"cannot ask for the free space of {directory}") from error
            return facts.f_bavail * facts.f_frsize

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        with explained(f"cannot sweep {self.root / PARTIAL}"):
            try:
                places = sorted(os.scandir(self.root / PARTIAL), key=lambda item: item.name)
            except FileNotFoundError:
                return []
            found = [_sweep_one(Path(place.path), min_age_seconds, dry_run=dry_run) for place in places]
        return [partial for partial in found if partial is not None]

    def prune(self, *, min_age_seconds: float) -> int:
        """Remove directories that have been empty for ``min_age_seconds``; returns how many. Safe beside writers."""
        pruned = 0
        for place, _, _ in os.walk(self.root, topdown=False):
            with suppress(InvalidName, OSError):  # not ours, or something is in it
                check_name(Path(place).relative_to(self.root).as_posix())
                if time.time() - os.stat(place).st_mtime >= min_age_seconds:
                    os.rmdir(place)
                    pruned += 1
        return pruned


def _sweep_one(path: Path, min_age_seconds: float, *, dry_run: bool) -> PartialWrite | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP}:
            return None  # gone meanwhile, or a link: no writer makes those
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            if not lock(descriptor):
                return None  # its writer is alive
        except OSError:
            min_age_seconds = max(min_age_seconds, _UNLOCKED_ORPHAN_SECONDS)  # no locks here: only age tells
        facts = os.fstat(descriptor)
        age_seconds = max(0.0, time.time() - facts.st_mtime)
        if age_seconds < min_age_seconds:
            return None
        if not dry_run:
            path.unlink(missing_ok=True)
        return PartialWrite(str(path), facts.st_size, age_seconds)
    finally:
        os.close(descriptor)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a shared lock on the file, so that no sweep removes it under any of its names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks; sweeps go by age there
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
