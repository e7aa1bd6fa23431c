"""How a checkpointer goes from the newest checkpoint back to one that can be used, and where it does not."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, list_checkpoints
from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    DigestMismatch,
    RestoreFailed,
    StoreDenied,
    StoreError,
    StoreUnreachable,
    TruncatedArchive,
)
from chockstone.checkpoints.reading.archive import read_head
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import ArchiveSource

NEWEST = "step-00000030"


class Faults(FileStore):
    """A real store in which openings fail as a test says: by name, and how many times."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.faults: dict[str, list[Exception | None]] = {}
        self.opened: Counter[str] = Counter()

    def open(self, name: str) -> ArchiveSource:
        self.opened[name] += 1
        waiting = self.faults.get(name, [])
        if waiting and (error := waiting.pop(0)) is not None:
            raise error
        return super().open(name)


@pytest.fixture
def store(tmp_path: Path) -> Faults:
    """With steps 10, 20 and 30."""
    store = Faults(tmp_path)
    with Checkpointer(store) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save({"x": np.full(500_000, float(step))}, step=step).result()
    store.opened.clear()
    return store


def damage(store: FileStore, name: str = NEWEST) -> None:
    """In its last tensor, where only a digest tells."""
    with Archive(store.open(name)) as archive:
        offset = archive.layout.members[-1].offset
    with store.path(name).open("r+b") as file:
        file.seek(offset + 3_000_000)
        file.write(b"\xff\xff\xff")


def take(store: FileStore, way: str, **options: Any) -> float:
    """The step whose numbers came back."""
    target = {"x": np.zeros(500_000)}
    with Checkpointer(store) as checkpointer:
        if way == "load":
            return float(checkpointer.load(**options)["x"][-1])
        checkpointer.restore(target, **options)
    return float(target["x"][-1])


@pytest.mark.parametrize("way", ["restore", "load"])
@pytest.mark.parametrize("error", [StoreUnreachable("503"), StoreDenied("403")])
def test_an_older_one_does_not_stand_in_for_one_that_cannot_be_read_now(
    error: StoreError, way: str, store: Faults
) -> None:
    store.faults[NEWEST] = [None, error]  # its head is read, and then nothing more

    with pytest.raises(type(error), match=str(error)):
        take(store, way)
    assert store.opened["step-00000020"] == 1, "only its head"


@pytest.mark.parametrize("way", ["restore", "load"])
@pytest.mark.parametrize("name", [None, NEWEST])
def test_a_fault_on_the_way_is_not_taken_for_damage(name: str | None, way: str, store: Faults) -> None:
    good = [] if name else [None]
    store.faults[NEWEST] = [*good, TruncatedArchive("the connection gave less")]

    assert take(store, way, name=name) == 30


def test_a_fault_on_the_way_to_its_head_does_not_cost_the_newest(
    store: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[ArchiveSource] = []

    def fail_once(source: ArchiveSource) -> object:
        descriptor = source.descriptor()
        assert descriptor is not None
        if os.fstat(descriptor).st_ino == newest and not failed:
            failed.append(source)
            raise TruncatedArchive("the connection gave less")
        return read_head(source)

    newest = store.path(NEWEST).stat().st_ino
    monkeypatch.setattr(sys.modules[list_checkpoints.__module__], "read_head", fail_once)
    with Checkpointer(store) as checkpointer:
        receipt = checkpointer.restore({"x": np.zeros(500_000)})

    assert (receipt.step, receipt.skipped, len(failed)) == (30, (), 1)


def test_damage_is_read_twice_and_the_steps_that_it_cost_are_told(store: Faults) -> None:
    damage(store)
    store.opened.clear()
    with Checkpointer(store) as checkpointer:
        receipt = checkpointer.restore({"x": np.zeros(500_000)})

    assert (receipt.step, receipt.steps_lost) == (20, 10)
    assert [skipped.name for skipped in receipt.skipped] == [NEWEST]
    assert store.opened == {NEWEST: 3, "step-00000020": 2, "step-00000010": 1}
    assert "steps lost  10" in str(receipt)


def test_steps_lost_with_a_head_that_cannot_be_read_are_not_guessed(store: Faults) -> None:
    store.path(NEWEST).write_bytes(b"torn")
    with Checkpointer(store) as checkpointer:
        receipt = checkpointer.restore({"x": np.zeros(500_000)})

    assert (receipt.step, receipt.steps_lost) == (20, None)
    assert "steps lost  unknown" in str(receipt)


@pytest.mark.parametrize("way", ["restore", "load"])
def test_one_that_is_deleted_while_it_is_looked_for_is_walked_past(way: str, store: Faults) -> None:
    store.faults[NEWEST] = [None, CheckpointMissing("gone"), CheckpointMissing("gone")]

    assert take(store, way) == 20


def test_a_target_that_damage_touched_is_called_half_restored_when_the_next_one_cannot_be_read(store: Faults) -> None:
    damage(store)
    store.faults["step-00000020"] = [None, StoreUnreachable("503")]

    with pytest.raises(RestoreFailed, match=r"the target is half restored; do not use it\. .* failed: 503"):
        take(store, "restore")


def test_damage_of_the_one_that_was_asked_for_is_told_as_it_is(store: Faults) -> None:
    damage(store)

    for way in ("restore", "load"):
        with pytest.raises(DigestMismatch):
            take(store, way, name=NEWEST)


def test_nothing_usable_is_not_nothing(store: Faults) -> None:
    for step in (10, 20, 30):
        store.path(f"step-000000{step}").write_bytes(b"torn")

    with pytest.raises(DamagedArchive, match="none of the checkpoints in"):
        take(store, "load")
    with pytest.raises(CheckpointMissing):
        take(store, "load", name="never")
