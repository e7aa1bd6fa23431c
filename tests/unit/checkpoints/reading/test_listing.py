from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer, list_checkpoints
from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.checkpoints.reading.listing import RECOVERY
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import StoreEntry

STATE = {"step": 1}


def test_checkpoints_are_listed_oldest_first_with_their_manifests(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, prefix="run") as checkpointer:
        checkpointer.save(STATE, name="b", step=1)
        checkpointer.save(STATE, name="a", step=2, kind=RECOVERY)

    listed = list_checkpoints(FileStore(tmp_path))

    assert [(c.name, c.manifest and c.manifest.step) for c in listed] == [("run/b", 1), ("run/a", 2)]
    assert [c.is_for_recovery for c in listed] == [False, True]
    assert all(c.seal and c.damage is None for c in listed)


def test_a_damaged_checkpoint_is_listed_first_and_says_why(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(STATE, step=1)
    (tmp_path / "torn.tar").write_bytes(b"x" * 100)

    torn, good = list_checkpoints(FileStore(tmp_path))

    assert (torn.name, torn.manifest, torn.seal, torn.is_newer) == ("torn", None, None, False)
    assert torn.damage == "100 bytes are too few for an archive"
    assert torn.order[0] == datetime.fromtimestamp(0, UTC)
    assert good.name == "step-00000001"


def test_only_what_is_below_the_prefix_is_listed(tmp_path: Path) -> None:
    for prefix in ("one", "two"):
        with Checkpointer(tmp_path, prefix=prefix) as checkpointer:
            checkpointer.save(STATE, step=1)

    assert [c.name for c in list_checkpoints(FileStore(tmp_path), "one")] == ["one/step-00000001"]
    assert list_checkpoints(FileStore(tmp_path), "three") == []


class ReplacedStore(FileStore):
    """Another writer that keeps one checkpoint replaces it after each of the first ``times`` listings."""

    def __init__(self, root: Path, *, times: int) -> None:
        super().__init__(root)
        self._left = times

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        listed = list(super().entries(prefix))
        if self._left:
            self._left -= 1
            [old] = self.root.glob("*.tar")
            old.rename(self.root / f"replaced-{self._left}.tar")
        return iter(listed)


def test_a_listing_is_repeated_if_a_listed_checkpoint_was_deleted(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(STATE, step=1)

    listed = list_checkpoints(ReplacedStore(tmp_path, times=2))

    assert [c.name for c in listed] == ["replaced-0"]


def test_a_listing_that_found_checkpoints_and_could_read_none_is_not_empty(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(STATE, step=1)

    with pytest.raises(StoreUnreachable, match="another process deleted all of them"):
        list_checkpoints(ReplacedStore(tmp_path, times=100))
