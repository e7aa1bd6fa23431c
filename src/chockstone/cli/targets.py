"""Targets: what the words of a command point at.

A store is a directory or a URL. A checkpoint is a store and a name, or one word for an archive by
itself: a path to a file, or a URL that ends in ``.tar``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from chockstone.checkpoints import Archive, Store, open_store
from chockstone.checkpoints.archive import Verify
from chockstone.checkpoints.errors import CheckpointMissing, StoreUnreachable
from chockstone.checkpoints.file_source import open_file
from chockstone.checkpoints.file_store import FileStore
from chockstone.checkpoints.store import SUFFIX, Entry, Source, check_name


@dataclass(frozen=True, slots=True)
class Target:
    """One archive, not opened yet."""

    name: str  # what to call it
    source: Callable[[], Source]

    def open(self, *, verify: Verify = "full") -> Archive:
        return Archive(self.source(), verify=verify)


def is_archive(word: str) -> bool:
    """Whether a word means an archive by itself rather than a store. Opening it decides what it is."""
    if "://" in word:
        return word.endswith(SUFFIX)
    return not os.path.isdir(word) and (word.endswith(SUFFIX) or os.path.isfile(word))


def find_store(word: str) -> Store:
    if not word:
        raise typer.BadParameter("the store is an empty word; name a directory or a URL such as s3://bucket/prefix")
    if is_archive(word):
        raise typer.BadParameter(f"{word!r} is an archive and not a store; name the directory it is in")
    return open_store(word)


def find_checkpoint(store: Store, name: str) -> Target:
    check_name(name)

    def source() -> Source:
        try:
            return store.open(name)
        except CheckpointMissing as error:
            raise CheckpointMissing(f"{error}; `chockstone checkpoints ls {store.url}` shows what is") from None

    return Target(name, source)


def find_archive(word: str) -> Target:
    if not is_archive(word):
        raise typer.BadParameter(
            f"{word!r} is not an archive file. Give a store and the name of a checkpoint "
            f"(`chockstone checkpoints ls {word}` lists them), or the path of a {SUFFIX} file."
        )
    if "://" not in word:
        return Target(word, lambda: open_file(Path(word)))
    place, _, name = word.removesuffix(SUFFIX).rpartition("/")
    if "://" not in place:
        raise typer.BadParameter(
            f"{word!r} names no archive: write the store, a slash and the file, s3://bucket/x{SUFFIX}"
        )
    return Target(word, lambda: open_store(place).open(name))


def find_one(where: str, name: str | None) -> Target:
    """From ``STORE NAME`` or ``FILE``."""
    return find_archive(where) if name is None else find_checkpoint(find_store(where), name)


def list_entries(store: Store, prefix: str) -> list[Entry]:
    entries = list(store.entries(prefix))
    if not entries:
        require_store(store)
    return entries


def require_store(store: Store) -> None:
    """Tell an empty store from a mistyped one; to the library both hold nothing."""
    if isinstance(store, FileStore) and not store.root.is_dir():
        raise StoreUnreachable(f"there is no directory {str(store.root)!r}; check the path of the store")
