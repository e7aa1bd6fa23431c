from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from chockstone.engine.data_directory import DirectoryInUse, is_owned, owned


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
