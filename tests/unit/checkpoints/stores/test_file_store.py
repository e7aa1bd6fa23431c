"""What only a store in a directory has: names that share their bytes, and directories that are left empty."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.checkpoints.stores import file_sink
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.posix import ensure_directory

SIZE = 4096


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def save(store: FileStore, name: str, *, overwrite: bool = False) -> None:
    sink = store.begin(name, SIZE)
    sink.write_at(0, memoryview(bytes(SIZE)))
    sink.commit(overwrite=overwrite)


def directories(store: FileStore) -> set[str]:
    return {path.relative_to(store.root).as_posix() for path in store.root.rglob("*") if path.is_dir()}


def test_copies_are_known_by_their_bytes(store: FileStore) -> None:
    save(store, "run/a")
    save(store, "run/b")
    store.copy("run/a", "run/copy")

    a, b, copy = store.entries("run")

    assert a.content == copy.content != b.content
    assert (a.links, b.links, copy.links) == (2, 1, 2)


def test_directories_that_were_left_empty_are_pruned_and_others_are_not(store: FileStore) -> None:
    for name in ("gone/weights/a", "kept/weights/a", "kept/sampler_weights/a"):
        save(store, name)
    for name in ("gone/weights/a", "kept/sampler_weights/a"):
        store.delete(name)
    for foreign in (".snapshots", "lost+found"):
        (store.root / foreign).mkdir()

    assert store.prune(min_age_seconds=3600) == 0, "somebody may be about to write there"
    assert store.prune(min_age_seconds=0) == 3

    assert directories(store) == {".partial", ".snapshots", "lost+found", "kept", "kept/weights"}
    assert [entry.name for entry in store.entries()] == ["kept/weights/a"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_makes_its_directory_again_that_is_pruned_under_its_hands(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    prunings = iter([True, True])

    def then_prune(path: Path) -> None:
        ensure_directory(path)
        if path.name == "weights" and next(prunings, False):
            assert store.prune(min_age_seconds=0)

    monkeypatch.setattr(file_sink, "ensure_directory", then_prune)

    save(store, "run/weights/a", overwrite=overwrite)
    prunings = iter([True])
    store.copy("run/weights/a", "other/weights/a", overwrite=overwrite)

    assert [entry.name for entry in store.entries()] == ["other/weights/a", "run/weights/a"]
    assert os.listdir(store.root / ".partial") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_copy_of_what_is_not_there_is_refused(store: FileStore, overwrite: bool) -> None:
    with pytest.raises(CheckpointMissing):
        store.copy("run/a", "run/b", overwrite=overwrite)


def test_saves_deletes_and_pruning_together_never_fail(store: FileStore) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        while not ended.is_set():
            store.prune(min_age_seconds=0)

    def write(number: int) -> None:
        try:
            for turn in range(50):
                save(store, f"run/weights/{number}-{turn}")
                assert store.delete(f"run/weights/{number}-{turn}")
        except BaseException as error:  # looked at by the test
            failures.append(error)

    pruner = threading.Thread(target=prune)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in (pruner, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    pruner.join()

    assert failures == []
