"""The threads that write an archive."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.stores.file_store import PARTIAL, FileStore
from support.checkpoints.file_archives import MIB, NOON


def test_an_interrupt_while_others_still_write_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the sink is closed under them, and its descriptor may be another file's by then."""
    joins: list[threading.Thread] = []
    join = threading.Thread.join

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        joins.append(self)
        if len(joins) == 1:
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    store = FileStore(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        write_files(store, "a", {"x": b"1" * MIB}, created_at=NOON)
    assert len(joins) == 2
    assert not joins[0].is_alive()
    assert not list(store.entries())
    assert not os.listdir(store.root / PARTIAL)
