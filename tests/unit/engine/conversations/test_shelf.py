from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from chockstone.engine.conversations.answers import new_conversation_id
from chockstone.engine.conversations.shelf import Shelf, counted_bytes, directory_of
from support.engine.making import NOW

IDS = [new_conversation_id("chatcmpl-", NOW + timedelta(seconds=at)) for at in range(3)]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(directory_of(tmp_path / "conversations", "ada"), synced=True)


def test_a_shelf_that_is_not_there_is_empty(shelf: Shelf) -> None:
    assert (shelf.ids(), shelf.tidy(), shelf.read(IDS[0]), shelf.delete(IDS[0])) == ([], (0, 0), None, None)


def test_ids_are_listed_oldest_first(shelf: Shelf) -> None:
    for conversation_id in reversed(IDS):
        shelf.write(conversation_id, b"x")

    assert shelf.ids() == IDS
    assert shelf.tidy() == (3, 3 * 4096)


def test_a_write_replaces_the_whole_file(shelf: Shelf) -> None:
    shelf.write(IDS[0], b"x" * 9000)
    shelf.write(IDS[0], b"y")

    assert shelf.read(IDS[0]) == b"y"


def test_a_write_that_fails_changes_nothing(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.write(IDS[0], b"x")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="the disk fails"):
        shelf.write(IDS[0], b"y")

    assert shelf.read(IDS[0]) == b"x"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_what_a_killed_server_left_unfinished_is_deleted(shelf: Shelf, tmp_path: Path) -> None:
    shelf.write(IDS[0], b"x")
    left = directory_of(tmp_path / "conversations", "ada") / f"{IDS[1]}.conversation.unfinished"
    left.write_bytes(b"half")

    assert shelf.ids() == [IDS[0]]
    assert shelf.tidy() == (1, 4096)
    assert not left.exists()


def test_a_deletion_leaves_no_file(shelf: Shelf, tmp_path: Path) -> None:
    shelf.write(IDS[0], b"x" * 5000)

    assert shelf.delete(IDS[0]) == counted_bytes(5000) == 8192
    assert shelf.delete(IDS[0]) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("owner", ["", "..", "a/b", "é" * 500, "ada\n"])
def test_an_owner_of_any_name_has_a_directory_inside(owner: str, tmp_path: Path) -> None:
    assert directory_of(tmp_path, owner).parent == tmp_path
    assert len(directory_of(tmp_path, owner).name) == 32
