from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer, open_store
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.ownership.data_directory import ARCHIVES, STORE_RECORD
from chockstone.engine.ownership.store_claim import CLAIM, StoreRefused, adopt_store, claim_store, store_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return new_data(tmp_path, "data")


def new_data(home: Path, name: str) -> Path:
    (home / name).mkdir()
    return home / name


def save(store: FileStore, name: str = "run/weights/a.1") -> None:
    with Checkpointer(store) as checkpointer:
        checkpointer.save({"step": 1}, name=name).result()


def test_the_store_in_the_data_directory_needs_no_claim(data: Path) -> None:
    claim_store(data, open_store(data / ARCHIVES))

    assert not list(data.iterdir())
    assert store_of(data) == str(data / ARCHIVES)


def test_a_store_elsewhere_is_the_first_servers_and_stays_it(data: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    for _ in range(2):
        claim_store(data, store)

    assert store_of(data) == store.url
    assert (store.root / CLAIM).is_file()
    assert list(store.entries()) == []
    with pytest.raises(StoreRefused, match="belongs to another server, with the data directory .*data"):
        claim_store(new_data(tmp_path, "other"), store)


def test_a_server_is_not_started_without_its_store(data: Path, tmp_path: Path) -> None:
    claim_store(data, FileStore(tmp_path / "store"))

    with pytest.raises(StoreRefused, match=f"start it with --store file://{tmp_path}/store"):
        claim_store(data, FileStore(data / ARCHIVES))
    with pytest.raises(StoreRefused, match="is the disk mounted"):
        claim_store(data, FileStore(tmp_path / "empty"))
    (data / STORE_RECORD).unlink()
    claim_store(data, FileStore(tmp_path / "empty"))


def test_a_store_moves_with_its_claim(data: Path, tmp_path: Path) -> None:
    claim_store(data, FileStore(tmp_path / "old"))
    shutil.copytree(tmp_path / "old", tmp_path / "new")

    claim_store(data, FileStore(tmp_path / "new"))

    assert store_of(data) == FileStore(tmp_path / "new").url


def test_what_was_in_the_data_directory_must_have_been_copied(data: Path, tmp_path: Path) -> None:
    save(FileStore(data / ARCHIVES))
    store = FileStore(tmp_path / "store")

    with pytest.raises(StoreRefused, match=r"1 of the 1 archives .* such as 'run/weights/a.1'"):
        claim_store(data, store)
    shutil.copytree(data / ARCHIVES, store.root)
    claim_store(data, store)

    assert store_of(data) == store.url


def test_a_first_start_that_was_cut_short_is_made_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "store")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("chockstone.engine.ownership.store_claim._write_claim", die)
        with pytest.raises(KeyboardInterrupt):
            claim_store(data, store)
    assert store_of(data) == str(data / ARCHIVES)

    claim_store(data, store)

    assert store_of(data) == store.url


def test_a_lost_data_directory_is_replaced_by_adopting_its_store(data: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    claim_store(data, store)
    heir = new_data(tmp_path, "heir")

    adopt_store(heir, store)
    claim_store(heir, store)

    assert store_of(heir) == store.url
    with pytest.raises(StoreRefused, match="belongs to another server, with the data directory '.*heir'"):
        claim_store(data, store)  # it was not lost after all


def test_whoever_adopts_what_is_its_own_stays_what_it_is(data: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    claim_store(data, store)
    before = (store.root / CLAIM).read_bytes()

    adopt_store(data, store)

    assert (store.root / CLAIM).read_bytes() == before


def test_a_claim_that_says_nothing_is_somebodys(data: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.root.mkdir()
    (store.root / CLAIM).write_bytes(b"\xff[]")

    with pytest.raises(StoreRefused, match="'unknown'"):
        claim_store(data, store)


def test_a_record_that_says_nothing_is_not_guessed(data: Path, tmp_path: Path) -> None:
    (data / STORE_RECORD).write_text("{}")

    with pytest.raises(StoreRefused, match="does not say which store"):
        claim_store(data, FileStore(tmp_path / "store"))
