"""The directory of one owner: a file for each conversation.

A file for each conversation, and not one for all or a table of the catalog: a deletion is then the deletion of a file,
which leaves no copy in a log, a free page or a backup of the catalog; the bytes of an owner are those of a directory;
and damage costs one conversation. A file is written beside its place and renamed, so it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from chockstone.checkpoints.stores.posix import ensure_directory, fsync_directory
from chockstone.engine.conversations.answers import is_conversation_id, order_of

SUFFIX: Final = ".conversation"
_UNFINISHED: Final = ".unfinished"
_BLOCK: Final = 4096  # a file takes at least so much of a disk


def counted_bytes(size_bytes: int) -> int:
    """What a file of this size counts against the quota: the blocks that it takes."""
    return -(-size_bytes // _BLOCK) * _BLOCK


def directory_of(directory: Path, owner: str) -> Path:
    """A name of an owner may have any characters, and that of a directory not."""
    return directory / hashlib.blake2b(owner.encode(), digest_size=16).hexdigest()


class OwnerDirectory:
    """Every method reads or writes the disk: call it in a thread. All raise OSError."""

    def __init__(self, directory: Path, *, synced: bool) -> None:
        """``synced``: what is written also survives a power failure."""
        self._directory = directory
        self._synced = synced

    def ids(self) -> list[str]:
        """Oldest first."""
        return sorted((conversation_id for conversation_id, _ in self._entries()), key=order_of)

    def tidy(self) -> tuple[int, int]:
        """Delete what a killed server left unfinished; returns how many conversations there are, and their bytes.

        Nothing may be written meanwhile.
        """
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(_UNFINISHED):
                    os.unlink(entry.path)
        sizes = [size for _, size in self._entries()]
        return len(sizes), sum(sizes)

    def write(self, conversation_id: str, content: bytes) -> None:
        """Whole on return, in place of what the conversation was; on an error, nothing is changed."""
        path = self._path(conversation_id)
        beside = path.with_name(path.name + _UNFINISHED)
        try:
            descriptor = self._create(beside)
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if self._synced:
                    os.fdatasync(descriptor)
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        if self._synced:
            fsync_directory(self._directory)

    def read(self, conversation_id: str) -> bytes | None:
        """None: it is not there."""
        try:
            return self._path(conversation_id).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, conversation_id: str) -> int | None:
        """The bytes that no longer count; None: it was not there."""
        path = self._path(conversation_id)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
        if self._synced:
            fsync_directory(self._directory)
        return counted_bytes(size)

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            ensure_directory(self._directory)
            return os.open(path, flags, 0o600)

    def _entries(self) -> Iterator[tuple[str, int]]:
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                conversation_id = entry.name.removesuffix(SUFFIX)
                if entry.name.endswith(SUFFIX) and is_conversation_id(conversation_id):
                    with suppress(FileNotFoundError):  # it was deleted a moment ago
                        yield conversation_id, counted_bytes(entry.stat(follow_symlinks=False).st_size)

    def _path(self, conversation_id: str) -> Path:
        assert is_conversation_id(conversation_id), "it was checked"
        return self._directory / f"{conversation_id}{SUFFIX}"
