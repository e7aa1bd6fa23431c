from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from chockstone.engine.ownership.data_directory import (
    DirectoryInUse,
    is_lock_lost,
    is_open_to_others,
    is_owned,
    owned,
    private_files,
)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    with owned(tmp_path):
        assert is_owned(tmp_path)
        with pytest.raises(DirectoryInUse), owned(tmp_path):
            pass

    assert not is_owned(tmp_path)


def test_an_owner_that_lets_go_is_waited_for(tmp_path: Path) -> None:
    first = ExitStack()
    first.enter_context(owned(tmp_path))

    with owned(tmp_path, wait_seconds=30, on_wait=first.close):
        assert is_owned(tmp_path)


def test_an_owner_that_stays_is_waited_for_in_vain_and_that_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []

    with owned(tmp_path), pytest.raises(DirectoryInUse):
        with owned(tmp_path, wait_seconds=0.2, on_wait=lambda: said.append("waiting")):
            pass

    assert said == ["waiting"]


def test_nobody_is_told_to_wait_for_a_directory_that_is_free(tmp_path: Path) -> None:
    said: list[str] = []

    with owned(tmp_path, wait_seconds=30, on_wait=lambda: said.append("waiting")):
        pass

    assert said == []


def test_deleting_the_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    with owned(tmp_path) as lock:
        assert not is_lock_lost(tmp_path, lock)
        (tmp_path / "lock").unlink()

        assert is_lock_lost(tmp_path, lock)
        assert is_owned(tmp_path)
        with pytest.raises(DirectoryInUse), owned(tmp_path):
            pass
        assert is_lock_lost(tmp_path, lock), "another one made a new file"

    assert not is_owned(tmp_path)


def test_a_lock_file_that_was_replaced_while_it_was_waited_for_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    first = ExitStack()
    first.enter_context(owned(tmp_path))

    def replace() -> None:
        (tmp_path / "lock").unlink()
        first.close()

    with owned(tmp_path, wait_seconds=30, on_wait=replace) as lock:
        assert not is_lock_lost(tmp_path, lock)


def test_what_is_made_as_private_is_nobody_elses(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "file").write_text("")
    (tmp_path / "after").mkdir()

    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "made" / "file").stat().st_mode & 0o777 == 0o600
    assert not is_open_to_others(tmp_path / "made")
    (tmp_path / "after").chmod(0o755)
    assert is_open_to_others(tmp_path / "after")


def test_waiting_ends_when_it_is_of_no_use(tmp_path: Path) -> None:
    asked: list[str] = []

    def gives_up() -> bool:
        asked.append("still?")
        return len(asked) == 2

    with owned(tmp_path), pytest.raises(DirectoryInUse), owned(tmp_path, wait_seconds=3600, gives_up=gives_up):
        pass

    assert len(asked) == 2
