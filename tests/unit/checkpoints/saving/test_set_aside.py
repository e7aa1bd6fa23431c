from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer, Retention, list_checkpoints
from chockstone.checkpoints.errors import CheckpointExists, DamagedArchive, InvalidName, StoreUnreachable
from chockstone.checkpoints.retention.enforcement import apply_retention
from chockstone.checkpoints.saving.set_aside import set_aside
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Store

NAME = "run/step-00000010"
ASIDE = f"{NAME}.damaged-1"
IN_THE_TENSOR = -100_000
IN_THE_HEAD = 300  # of the first tar header: the file no longer looks like an archive


def state(value: float) -> dict[str, object]:
    return {"x": np.full(100_000, float(value)), "step": int(value)}


def read(store: Store, name: str) -> bytearray:
    source = store.open(name)
    content = bytearray(source.size)
    source.read_into(0, memoryview(content))
    source.close()
    return content


def damage(store: Store, name: str, *, at: int) -> bytes:
    """Flip a bit; the archive as it is then."""
    content = read(store, name)
    content[at] ^= 1
    sink = store.begin(name, len(content))
    sink.write_at(0, memoryview(content))
    sink.commit(overwrite=True)
    return bytes(content)


def save(store: Store, *steps: int) -> None:
    with Checkpointer(store, prefix="run") as checkpointer:
        for step in steps:
            checkpointer.save(state(step), step=step).result()


def names(store: Store) -> list[str]:
    return [entry.name for entry in store.entries()]


@pytest.mark.parametrize("at", [IN_THE_TENSOR, IN_THE_HEAD])
@pytest.mark.parametrize("way", ["restore", "load"])
def test_a_loop_that_went_back_past_damage_saves_the_same_step_again(store: Store, way: str, at: int) -> None:
    save(store, 5, 10)
    evidence = damage(store, NAME, at=at)

    with Checkpointer(store, prefix="run") as checkpointer:
        into = state(0)
        found = checkpointer.load() if way == "load" else (checkpointer.restore(into), into)[1]
        assert found["step"] == 5
        checkpointer.save(state(10.5), step=10).result()
        checkpointer.verify("step-00000010")

    assert names(store) == ["run/step-00000005", NAME, ASIDE]
    assert read(store, ASIDE) == evidence


def test_a_restart_takes_the_new_archive_and_does_not_name_the_old_one(store: Store) -> None:
    save(store, 5, 10)
    damage(store, NAME, at=IN_THE_HEAD)
    with Checkpointer(store, prefix="run") as checkpointer:
        checkpointer.restore(state(0))
        checkpointer.save(state(10.5), step=10).result()

    with Checkpointer(store, prefix="run") as checkpointer:
        receipt = checkpointer.restore(into := state(0))

    assert receipt is not None
    assert (receipt.name, receipt.skipped, receipt.steps_lost, into["step"]) == (NAME, (), 0, 10)


def test_a_second_damage_of_the_same_name_is_set_aside_beside_the_first(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    save(store, 5, 10)
    for _ in range(2):
        damage(store, NAME, at=IN_THE_TENSOR)
        with Checkpointer(store, prefix="run") as checkpointer:
            checkpointer.restore(state(0))
            checkpointer.save(state(10), step=10).result()

    assert names(store) == ["run/step-00000005", NAME, ASIDE, f"{NAME}.damaged-2"]


def test_a_good_archive_that_took_the_place_of_the_damaged_one_is_not_replaced(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    save(store, 5, 10)
    damage(store, NAME, at=IN_THE_TENSOR)
    with Checkpointer(store, prefix="run") as checkpointer:
        checkpointer.restore(state(0))
        with Checkpointer(store, prefix="run") as other:
            other.save(state(11), step=10, overwrite=True).result()

        with pytest.raises(CheckpointExists):
            checkpointer.save(state(10), step=10).result()

    assert names(store) == ["run/step-00000005", NAME]


def test_a_damaged_archive_that_no_restore_has_skipped_keeps_its_name(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    save(store, 5, 10)
    damage(store, NAME, at=IN_THE_TENSOR)

    with Checkpointer(store, prefix="run") as checkpointer, pytest.raises(CheckpointExists):
        checkpointer.save(state(10), step=10).result()

    assert names(store) == ["run/step-00000005", NAME]


def test_a_damage_that_a_second_reading_does_not_find_stays_in_its_place(tmp_path: Path) -> None:
    class Flaky(FileStore):
        readings = 0

        def open(self, name: str):  # type: ignore[no-untyped-def]
            self.readings += 1
            if self.readings == 1:
                raise DamagedArchive("a bit was lost on the way")
            return super().open(name)

    save(FileStore(tmp_path), 10)
    store = Flaky(tmp_path)

    assert set_aside(store, NAME) is None
    assert (store.readings, names(store)) == (2, [NAME])


def test_an_archive_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    class Away(FileStore):
        def open(self, name: str):  # type: ignore[no-untyped-def]
            raise StoreUnreachable("503")

    save(FileStore(tmp_path), 10)

    with pytest.raises(StoreUnreachable):
        set_aside(Away(tmp_path), NAME)

    assert names(FileStore(tmp_path)) == [NAME]


def test_an_archive_deleted_meanwhile_leaves_its_name_free(tmp_path: Path) -> None:
    assert set_aside(FileStore(tmp_path), NAME) is None


def test_what_was_set_aside_is_listed_as_damaged_and_does_not_count_in_retention(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    save(store, 5, 10)
    damage(store, NAME, at=IN_THE_TENSOR)
    assert set_aside(store, NAME) == ASIDE

    listed = {c.name: c for c in list_checkpoints(store)}
    kept = apply_retention(store, "run", Retention(keep_last=1), now=listed["run/step-00000005"].modified_at).plan

    assert listed[ASIDE].manifest is None
    assert kept.damaged == (ASIDE,)
    assert names(store) == ["run/step-00000005", ASIDE]


def test_a_run_whose_only_archive_was_set_aside_does_not_start_from_zero(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    save(store, 10)
    damage(store, NAME, at=IN_THE_TENSOR)
    set_aside(store, NAME)

    with Checkpointer(store, prefix="run") as checkpointer, pytest.raises(DamagedArchive):
        checkpointer.restore(state(0))


def test_no_save_takes_a_name_of_that_form(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(InvalidName):
        checkpointer.save(state(1), name="step-00000010.damaged-1")
