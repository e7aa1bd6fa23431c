"""States that are spread over archives are put together whole, and only from what they name truthfully."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, DamagedArchive, UnsupportedArchive
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.resume.attempts.generations import read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces
from chockstone.integrations.flyte.merging import MergedPart, as_metadata, fetch, inherit, state_of

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> AttemptPlace:
    return AttemptPlaces().open(str(tmp_path / "dest"))


def write(place: AttemptPlace, number: int, files: dict[str, bytes], inherited: Any = (), kind: str = "files") -> str:
    name = f"{number:06d}-0001"
    metadata = inherited if isinstance(inherited, dict) else as_metadata(inherited)
    write_files(place.store, name, files, kind=kind, metadata=metadata, created_at=NOW)
    return name


def test_a_state_is_put_together_from_all_that_it_names(place: AttemptPlace, tmp_path: Path) -> None:
    first = write(place, 1, {"a": b"1", "b": b"2"})
    state = state_of(read_head_of(place, first), first)
    second = write(place, 2, {"b": b"3"}, inherit(state, ["b"]))
    state = state_of(read_head_of(place, second), second)
    third = write(place, 3, {"c/d": b"4"}, inherit(state, ["c/d"]))
    (tmp_path / "staged").mkdir()

    fetch(place, read_head_of(place, third), third, tmp_path / "staged")

    found = {path.name: path.read_bytes() for path in (tmp_path / "staged").rglob("*") if path.is_file()}
    assert found == {"a": b"1", "b": b"3", "d": b"4"}


def test_an_archive_that_is_another_one_by_now_is_damage(place: AttemptPlace, tmp_path: Path) -> None:
    first = write(place, 1, {"a": b"1"})
    state = state_of(read_head_of(place, first), first)
    second = write(place, 2, {"b": b"2"}, inherit(state, ["b"]))
    place.store.delete(first)
    for name in ("gone", "replaced"):
        (tmp_path / name).mkdir()

    with pytest.raises(CheckpointMissing):
        fetch(place, read_head_of(place, second), second, tmp_path / "gone")
    write(place, 1, {"a": b"x"})
    with pytest.raises(DamagedArchive, match="another archive"):
        fetch(place, read_head_of(place, second), second, tmp_path / "replaced")


GOOD = {"name": "a", "size": 1, "generation": "000001-0001", "seal": "0" * 64}


@pytest.mark.parametrize(
    "inherited",
    [
        7,
        [7],
        [{**GOOD, "name": "../a"}],
        [{**GOOD, "name": "/a"}],
        [{**GOOD, "name": 7}],
        [{**GOOD, "size": -1}],
        [{**GOOD, "size": True}],
        [{**GOOD, "size": 10**30}],
        [{**GOOD, "generation": "../000001-0001"}],
        [{**GOOD, "seal": "x"}],
        [GOOD, GOOD],
        [{**GOOD, "name": "B"}],  # differs from a member only in case
        [{**GOOD, "name": "b/c"}],  # below a file
        [{}],
    ],
)
def test_F38_what_cannot_be_true_is_damage(place: AttemptPlace, inherited: object) -> None:
    name = write(place, 2, {"b": b"2"}, {"inherited": inherited})

    with pytest.raises(DamagedArchive):
        state_of(read_head_of(place, name), name)


def test_a_size_that_is_not_the_members_is_damage(place: AttemptPlace, tmp_path: Path) -> None:
    first = write(place, 1, {"a": b"1"})
    seal = read_head_of(place, first).seal
    second = write(place, 2, {"b": b"2"}, [MergedPart("a", 10_000_000_000, first, seal)])
    (tmp_path / "staged").mkdir()

    with pytest.raises(DamagedArchive, match="size"):
        fetch(place, read_head_of(place, second), second, tmp_path / "staged")


def test_a_checkpoint_of_tensors_is_not_taken_for_files(place: AttemptPlace) -> None:
    name = write(place, 1, {"state.json": b"{}"}, kind="training")

    with pytest.raises(UnsupportedArchive, match="Resume"):
        state_of(read_head_of(place, name), name)


@pytest.mark.parametrize("new", ["A", "a/b"])
def test_what_does_not_go_with_what_is_there_is_refused_before_it_is_written(new: str) -> None:
    with pytest.raises(CheckpointError, match="replace=True"):
        inherit({"a": MergedPart("a", 1, "000001-0001", "0" * 64)}, [new])


@pytest.mark.parametrize("name", ["with space.pt", "ümlaut.pt"])
def test_a_name_that_cannot_be_saved_is_blamed_on_itself(name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved as they are: .*Rename them"):
        inherit({}, [name])
    assert inherit({}, ["epoch=3-step=100.ckpt"]) == []
