"""Places: written one way, listed apart from their folder, and never empty because of what should not be there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Resume
from chockstone.checkpoints.errors import InvalidName, ResumeExhausted
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces, FilePlace, normalise
from chockstone.checkpoints.stores.posix import ensure_directory


def _state() -> dict[str, object]:
    return {"w": np.zeros(4)}


def _saved(root: Path) -> Path:
    """The archive of a first attempt that saved once."""
    with Resume(root, attempt=0) as resume:
        resume.save(_state(), step=5).result()
    (archive,) = (root / "attempt-00000.ckpt").glob("*.tar")
    return archive


def _dangling(archive: Path) -> None:
    archive.symlink_to(archive.with_name("nowhere"))


@pytest.mark.parametrize("written", ["/a/b", "/a/b/", "/a//b", "/a/./b", "file:///a/b", "file:///a/b/"])
def test_a_path_is_written_one_way(written: str) -> None:
    assert normalise(written) == "file:///a/b"


@pytest.mark.parametrize(
    "written",
    ["", "/", "file:///", "s3://bucket", "s3://bucket/", "s3:///key", "ftp://host/x", "s3://b/a/../x", "s3://b/x?y=1"],
)
def test_what_is_no_place_is_refused(written: str) -> None:
    with pytest.raises(InvalidName):
        normalise(written)


def test_credentials_in_a_place_are_refused_and_not_quoted() -> None:
    with pytest.raises(InvalidName) as refused:
        normalise("s3://key:hunter2@bucket/x")

    assert "hunter2" not in str(refused.value)


def test_a_place_beside_a_folder_is_listed_apart_from_it(tmp_path: Path) -> None:
    place = AttemptPlaces().open(tmp_path / "x")

    assert place.put_if_absent("claims/000001.json", b"{}")
    assert not place.put_if_absent("claims/000001.json", b"other")

    assert place.read("claims/000001.json") == b"{}"
    assert place.listing().records == {"claims/000001.json": 2}
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, _dangling])
def test_what_is_no_file_under_the_name_of_a_commit_is_no_fresh_start(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    archive = _saved(tmp_path / "run")
    archive.unlink()
    put(archive)
    with pytest.raises(ResumeExhausted, match="000001-0001: corrupt"):
        Resume(tmp_path / "run", attempt=1).restore(_state())


def test_an_archive_that_was_moved_and_linked_is_restored(tmp_path: Path) -> None:
    archive = _saved(tmp_path / "run")
    shutil.move(archive, tmp_path / "elsewhere.tar")
    archive.symlink_to(tmp_path / "elsewhere.tar")
    with Resume(tmp_path / "run", attempt=1) as resume:
        receipt = resume.restore(_state())
    assert receipt is not None
    assert receipt.step == 5


def test_a_record_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run")
    (place.folder / "resume.json").mkdir(parents=True)
    with pytest.raises(Exception, match=r"resume\.json"):
        place.put("resume.json", b"{}")
    assert not os.listdir(place.folder / ".partial")


def test_directories_below_a_dangling_link_are_refused_plainly(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted/disk")
    with pytest.raises(FileNotFoundError):
        ensure_directory(tmp_path / "link/run/attempt")
    ensure_directory(tmp_path / "a/b/c")
    ensure_directory(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
