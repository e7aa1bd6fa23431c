"""Policies applied to archives in a store."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from chockstone.checkpoints import Checkpointer, Retention
from chockstone.checkpoints.retention.enforcement import apply_retention
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import ArchiveSource

START = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_save_applies_the_policy_after_its_commit(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, prefix="run", retention=Retention(keep_last=2)) as checkpointer:
        results = [checkpointer.save({"x": step}, step=step).result() for step in range(5)]

        names = [checkpoint.name for checkpoint in checkpointer.checkpoints()]

    assert names == ["run/step-00000003", "run/step-00000004"]
    assert [removal.name for removal in results[-1].removed] == ["run/step-00000002"]


def test_a_policy_touches_only_its_own_prefix(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, prefix="other") as other:
        other.save({"x": 0}, step=0).result()
    with Checkpointer(tmp_path, prefix="run", retention=Retention(keep_last=1)) as checkpointer:
        for step in range(3):
            checkpointer.save({"x": step}, step=step).result()

    assert [entry.name for entry in checkpointer.store.entries()] == ["other/step-00000000", "run/step-00000002"]


def test_a_dry_run_removes_nothing(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(3):
            checkpointer.save({"x": step}, step=step).result()

        collection = apply_retention(checkpointer.store, "", Retention(keep_last=1), now=START, dry_run=True)

        assert len(collection.plan.remove) == 2
        assert len(checkpointer.checkpoints()) == 3


def damage_values(path: Path, value: int) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b'{"x":%d}' % value) + 5] = ord("7")
    path.write_bytes(content)


def test_only_archives_whose_digests_are_right_count_when_verifying(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(4):
            checkpointer.save({"x": step}, step=step).result()
        damage_values(tmp_path / "step-00000002.tar", 2)

        collection = apply_retention(checkpointer.store, "", Retention(keep_last=2), now=START, verify=True)

        assert [removal.name for removal in collection.removed] == ["step-00000000"]
        assert collection.plan.damaged == ("step-00000002",)


def test_a_newest_one_that_vanishes_meanwhile_does_not_cost_the_others(tmp_path: Path) -> None:
    class Vanishing(FileStore):
        def open(self, name: str) -> ArchiveSource:
            source = super().open(name)
            if name == "step-00000002":
                self.delete(name)
            return source

    with Checkpointer(tmp_path) as checkpointer:
        for step in range(3):
            checkpointer.save({"x": step}, step=step).result()

        collection = apply_retention(Vanishing(tmp_path), "", Retention(keep_last=1), now=START, verify=True)

        assert [removal.name for removal in collection.removed] == ["step-00000000"]
        assert checkpointer.load() == {"x": 1}


def test_a_newest_one_whose_digests_are_wrong_does_not_count_when_verifying(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(3):
            checkpointer.save({"x": step}, step=step).result()
        damage_values(tmp_path / "step-00000002.tar", 2)

        collection = apply_retention(checkpointer.store, "", Retention(keep_last=1), now=START, verify=True)

        assert [removal.name for removal in collection.removed] == ["step-00000000"]
        assert checkpointer.load() == {"x": 1}
