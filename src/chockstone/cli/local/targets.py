"""Finds the stores and archives that the arguments of a command name.

A store is a directory or a URL. A checkpoint is a store and a name, or an archive by itself: a path to a file, or a URL
that ends in ``.tar``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from chockstone.checkpoints import Archive, Store, open_store
from chockstone.checkpoints.errors import CheckpointMissing, StoreUnreachable
from chockstone.checkpoints.reading.archive import Verify
from chockstone.checkpoints.stores.file_source import open_file
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import SUFFIX, ArchiveSource, StoreEntry, check_name
from chockstone.cli.output.short_ids import complete_id
from chockstone.wire.paths import SCHEME


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """One archive, not opened yet."""

    name: str  # what to call it
    source: Callable[[], ArchiveSource]

    def open(self, *, verify: Verify = "full") -> Archive:
        return Archive(self.source(), verify=verify)


def is_archive(word: str) -> bool:
    """Whether a word means an archive by itself rather than a store. Opening it decides what it is."""
    if "://" in word:
        return word.endswith(SUFFIX)
    return not os.path.isdir(word) and (word.endswith(SUFFIX) or os.path.isfile(word))


def find_store(word: str) -> Store:
    if not word:
        raise typer.BadParameter("the store is empty text; name a directory or a URL such as s3://bucket/prefix")
    _refuse_address(word)
    if is_archive(word):
        raise typer.BadParameter(f"{word!r} is an archive, not a store; name its directory")
    return open_store(word)


def find_named(store: Store, word: str) -> CommandTarget:
    """The checkpoint of this name, or the one whose name begins with it. Raises AmbiguousId."""
    check_name(word)
    try:
        store.stat(word)
    except CheckpointMissing:
        found = complete_id(word, (entry.name for entry in store.entries()), noun="checkpoint")
        return find_checkpoint(store, found or word)
    return find_checkpoint(store, word)


def find_checkpoint(store: Store, name: str) -> CommandTarget:
    check_name(name)

    def source() -> ArchiveSource:
        try:
            return store.open(name)
        except CheckpointMissing as error:
            raise CheckpointMissing(f"{error}; `chockstone checkpoints ls {store.url}` lists them") from None

    return CommandTarget(name, source)


def find_archive(word: str) -> CommandTarget:
    _refuse_address(word)
    if not is_archive(word):
        if "://" in word or os.path.isdir(word):
            raise typer.BadParameter(
                f"{word!r} is a store, not an archive file: add the name of a checkpoint, as "
                f"`chockstone checkpoints ls {word}` prints it, or write the path of a {SUFFIX} file"
            )
        raise typer.BadParameter(
            f"there is no archive file {word!r}: write the path of a {SUFFIX} file, a store and the name of a "
            f"checkpoint, or a server's checkpoint as tinker://RUN/KIND/NAME"
        )
    if "://" not in word:
        return CommandTarget(word, lambda: open_file(Path(word)))
    place, _, name = word.removesuffix(SUFFIX).rpartition("/")
    if "://" not in place:
        raise typer.BadParameter(
            f"{word!r} is not the URL of an archive: write the store, a slash and the file, s3://bucket/x{SUFFIX}"
        )
    return CommandTarget(word, lambda: open_store(place).open(name))


def _refuse_address(word: str) -> None:
    if word.startswith(SCHEME):
        raise typer.BadParameter(
            f"{word!r} is a path on a server, and this argument is a store or a file; download the checkpoint with "
            f"`chockstone checkpoints download`"
        )


def find_one(where: str, name: str | None) -> CommandTarget:
    """From ``STORE NAME`` or ``FILE``."""
    return find_archive(where) if name is None else find_named(find_store(where), name)


def list_entries(store: Store, prefix: str) -> list[StoreEntry]:
    entries = list(store.entries(prefix))
    if not entries:
        require_store(store)
    return entries


def require_store(store: Store) -> None:
    """Tell an empty store from a mistyped one; to the library both hold nothing."""
    if isinstance(store, FileStore) and not store.root.is_dir():
        raise StoreUnreachable(f"there is no directory {str(store.root)!r}; check the path of the store")
