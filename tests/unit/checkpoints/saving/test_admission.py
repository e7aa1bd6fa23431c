from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints import Admission, Checkpointer
from chockstone.checkpoints.errors import AdmissionRefused
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from support.tensors import zeros


class CountingStore(FileStore):
    begun = 0

    def begin(self, name: str, size: int) -> Sink:
        self.begun += 1
        return super().begin(name, size)


def test_a_save_over_the_quota_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    with Checkpointer(store, admission=Admission(quota_bytes=100_000)) as checkpointer:
        checkpointer.save({"x": zeros(10_000)}, step=1).result()

        with pytest.raises(AdmissionRefused, match="its quota of 100000 has"):
            checkpointer.save({"x": zeros(10_000)}, step=2).result()

    assert store.begun == 1


def test_what_is_replaced_does_not_count(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, admission=Admission(quota_bytes=100_000)) as checkpointer:
        for _ in range(3):
            checkpointer.save({"x": zeros(10_000)}, name="last", overwrite=True).result()


def test_other_prefixes_do_not_count(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, prefix="other") as other:
        other.save({"x": zeros(100_000)}, step=1).result()

    with Checkpointer(tmp_path, prefix="mine", admission=Admission(quota_bytes=100_000)) as checkpointer:
        checkpointer.save({"x": zeros(10_000)}, step=1).result()


def test_the_reserve_of_free_space_is_respected(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    free = store.free_bytes()
    assert free is not None

    with Checkpointer(store, admission=Admission(reserve_bytes=2 * free)) as checkpointer:  # others may free some
        with pytest.raises(AdmissionRefused, match="are reserved"):
            checkpointer.save({"x": 1}, step=1).result()

    assert store.begun == 0


def test_an_allowance_holds_for_one_save_and_counts_nothing_else(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    with Checkpointer(store) as checkpointer:
        needed = checkpointer.save({"x": zeros(10_000)}, step=1).result().size_bytes

        with pytest.raises(AdmissionRefused, match=f"needs {needed} bytes and its allowance is {needed - 1}"):
            checkpointer.save({"x": zeros(10_000)}, step=2, admission=Admission(allowance_bytes=needed - 1)).result()
        assert store.begun == 1
        checkpointer.save({"x": zeros(10_000)}, step=2, admission=Admission(allowance_bytes=needed)).result()


def test_an_allowance_that_is_used_up_is_told_as_none(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(AdmissionRefused, match="its allowance is 0"):
        checkpointer.save({"x": 1}, step=1, admission=Admission(allowance_bytes=-5)).result()
