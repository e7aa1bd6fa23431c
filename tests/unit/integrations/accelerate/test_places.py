"""Places: checkpoint directories, by path or URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.accelerate.places import (
    CheckpointPlace,
    delete_oldest,
    is_foreign,
    numbered,
    place_of,
)


def save(folder: Path, *directories: str) -> None:
    with Checkpointer(folder) as checkpointer:
        for step, directory in enumerate(directories):
            checkpointer.save({"step": step}, name=CheckpointPlace(str(folder), directory).name)


def test_a_path_or_url_is_a_directory_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert place_of("run/checkpoint_1") == CheckpointPlace(f"{tmp_path}/run", "checkpoint_1")
    assert place_of(tmp_path / "a" / "") == CheckpointPlace(str(tmp_path), "a")
    assert place_of("s3://bucket/run/a/") == CheckpointPlace("s3://bucket/run", "a")
    assert place_of("s3://bucket/a").name == "a/state"


@pytest.mark.parametrize("text", ["/", "s3://bucket", "s3://"])
def test_what_is_in_no_folder_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give a directory in a folder"):
        place_of(text)


def test_the_oldest_are_deleted_by_number_and_incomplete_ones_do_not_count(tmp_path: Path) -> None:
    save(tmp_path, "checkpoint_9", "checkpoint_10", "checkpoint_11", "other")
    (tmp_path / "checkpoint_12").mkdir()

    delete_oldest(str(tmp_path), keep=2)

    assert list(numbered(str(tmp_path))) == [10, 11, 12]
    assert (tmp_path / "other" / "state.tar").is_file()
    assert numbered(str(tmp_path / "never made")) == {}


def test_a_checkpoint_that_was_just_saved_is_not_the_oldest_because_of_its_number(tmp_path: Path) -> None:
    save(tmp_path, "checkpoint_8", "checkpoint_9", "checkpoint_0")

    delete_oldest(str(tmp_path), keep=2)

    assert list(numbered(str(tmp_path))) == [0, 9]


def test_directories_of_accelerate_are_recognised(tmp_path: Path) -> None:
    assert not is_foreign(tmp_path)
    (tmp_path / "random_states_0.pkl").touch()
    assert is_foreign(tmp_path)
