from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from chockstone.engine.conversations.answers import new_conversation_id
from chockstone.engine.conversations.owner_directory import OwnerDirectory, counted_bytes, directory_of
from support.engine.making import NOW

IDS = [new_conversation_id("chatcmpl-", NOW + timedelta(seconds=at)) for at in range(3)]


@pytest.fixture
def place(tmp_path: Path) -> OwnerDirectory:
    return OwnerDirectory(directory_of(tmp_path / "conversations", "ada"), synced=True)


def test_a_directory_that_is_not_there_is_empty(place: OwnerDirectory) -> None:
    assert (place.ids(), place.tidy(), place.read(IDS[0]), place.delete(IDS[0])) == ([], (0, 0), None, None)


def test_ids_are_listed_oldest_first(place: OwnerDirectory) -> None:
    for conversation_id in reversed(IDS):
        place.write(conversation_id, b"x")

    assert place.ids() == IDS
    assert place.tidy() == (3, 3 * 4096)


def test_a_write_replaces_the_whole_file(place: OwnerDirectory) -> None:
    place.write(IDS[0], b"x" * 9000)
    place.write(IDS[0], b"y")

    assert place.read(IDS[0]) == b"y"


def test_a_write_that_fails_changes_nothing(
    place: OwnerDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(IDS[0], b"x")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="the disk fails"):
        place.write(IDS[0], b"y")

    assert place.read(IDS[0]) == b"x"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_what_a_killed_server_left_unfinished_is_deleted(place: OwnerDirectory, tmp_path: Path) -> None:
    place.write(IDS[0], b"x")
    left = directory_of(tmp_path / "conversations", "ada") / f"{IDS[1]}.conversation.unfinished"
    left.write_bytes(b"half")

    assert place.ids() == [IDS[0]]
    assert place.tidy() == (1, 4096)
    assert not left.exists()


def test_a_deletion_leaves_no_file(place: OwnerDirectory, tmp_path: Path) -> None:
    place.write(IDS[0], b"x" * 5000)

    assert place.delete(IDS[0]) == counted_bytes(5000) == 8192
    assert place.delete(IDS[0]) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("owner", ["", "..", "a/b", "é" * 500, "ada\n"])
def test_an_owner_of_any_name_has_a_directory_inside(owner: str, tmp_path: Path) -> None:
    assert directory_of(tmp_path, owner).parent == tmp_path
    assert len(directory_of(tmp_path, owner).name) == 32
