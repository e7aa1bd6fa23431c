"""Files to save in archives without a state, and what must be left of a failed save."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

from chockstone.checkpoints.stores.file_store import PARTIAL, FileStore
from chockstone.checkpoints.stores.store import Store

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


MIB = 1024**2


SIZES = {
    "empty": 0,
    "one": 1,
    "page": 4096,
    "odd": 4097,
    "sub/block": MIB,
    "sub/deep/large.bin": 3 * MIB + 17,
    "z": 700,
}


def content(name: str, size: int) -> bytes:
    return hashlib.shake_128(name.encode()).digest(size)


def make_files(folder: Path) -> dict[str, Path]:
    for name, size in SIZES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(name, size))
    return {name: folder / name for name in SIZES}


def assert_nothing_is_left(store: Store) -> None:
    assert list(store.entries()) == []
    if isinstance(store, FileStore):
        assert not (store.root / PARTIAL).exists() or os.listdir(store.root / PARTIAL) == []
    else:
        assert store.sweep() == []
