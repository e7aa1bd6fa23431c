"""Folders: archives under the file names that Lightning chooses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.store import check_name
from chockstone.integrations.lightning.folder import CheckpointFolder, filename_of, is_torch_file, name_of

FILENAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(FILENAMES)
def test_a_name_in_the_store_stands_for_one_file_name(filename: str) -> None:
    name = name_of(filename)

    check_name(name)
    assert filename_of(name) == filename


def save(folder: Path, *filenames: str) -> None:
    with Checkpointer(CheckpointFolder(folder)) as checkpointer:
        for step, filename in enumerate(filenames):
            checkpointer.save({"step": step}, name=name_of(filename), step=step)


def test_an_archive_is_the_file_of_its_name(tmp_path: Path) -> None:
    save(tmp_path, "epoch=0-step=10.ckpt")

    assert (tmp_path / "epoch=0-step=10.ckpt").is_file()
    assert CheckpointFolder(tmp_path).path(name_of("epoch=0-step=10.ckpt")) == tmp_path / "epoch=0-step=10.ckpt"


def test_a_listing_has_the_archives_of_the_directory_alone(tmp_path: Path) -> None:
    save(tmp_path, "a=1.ckpt", "b=2.ckpt")
    save(tmp_path / "deeper", "c=3.ckpt")
    torch.save({"step": 4}, tmp_path / "torch.ckpt")
    (tmp_path / "notes.txt").write_text("of other kinds")
    os.symlink("b=2.ckpt", tmp_path / "last.ckpt")
    os.symlink("gone.ckpt", tmp_path / "dangling.ckpt")

    listed = [filename_of(entry.name) for entry in CheckpointFolder(tmp_path).entries()]

    assert sorted(listed) == ["a=1.ckpt", "b=2.ckpt", "last.ckpt"]
    assert list(CheckpointFolder(tmp_path / "never made").entries()) == []


def test_prefixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no prefixes"):
        CheckpointFolder(tmp_path).entries("run-1")


def test_files_of_torch_are_recognised_by_content(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "old.ckpt")
    save(tmp_path, "new.ckpt")

    assert is_torch_file(tmp_path / "old.ckpt")
    assert not is_torch_file(tmp_path / "new.ckpt")
    assert not is_torch_file(tmp_path / "missing.ckpt")


def test_a_tidy_folder_shows_checkpoints_only(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt")

    CheckpointFolder(tmp_path).tidy()

    assert os.listdir(tmp_path) == ["a.ckpt"]
