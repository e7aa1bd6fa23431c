from __future__ import annotations

import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.mapped_files import MappedFile, SourceDirectory, resolve


def test_a_mapped_file_notices_that_it_was_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    file = MappedFile.open(tmp_path / "a")
    file.check()

    (tmp_path / "a").write_bytes(b"second")

    with pytest.raises(ImportRefused, match="was changed"):
        file.check()


def test_writing_to_the_mapping_does_not_change_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")

    MappedFile.open(tmp_path / "a").memory[0] = 0

    assert (tmp_path / "a").read_bytes() == b"first"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", ""])
def test_a_directory_opens_only_its_own_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "inner").mkdir()

    with pytest.raises(ImportRefused, match="not a file of its own directory"):
        SourceDirectory(tmp_path / "inner").open(name)


def test_links_pipes_and_empty_files_in_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link").symlink_to(tmp_path / "secret")
    (inner / "empty").touch()
    os.mkfifo(inner / "pipe")
    directory = SourceDirectory(inner)

    for name, complaint in {"link": "is a link", "empty": "is empty", "pipe": "not a regular file"}.items():
        with pytest.raises(ImportRefused, match=complaint):
            directory.open(name)


def test_a_link_that_the_user_named_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "last").symlink_to("a")

    assert resolve(tmp_path / "last") == tmp_path / "a"
    with pytest.raises(ImportRefused, match="there is no"):
        resolve(tmp_path / "b")


def test_json_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{")

    with pytest.raises(ImportRefused, match=r"a\.json"):
        MappedFile.open(tmp_path / "a.json").json()
