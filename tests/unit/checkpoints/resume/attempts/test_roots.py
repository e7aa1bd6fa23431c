"""Roots: attempts by number, and none below the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.errors import InvalidName, ResumeError, Superseded
from chockstone.checkpoints.resume.attempts.candidates import Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.attempts.roots import (
    MAX_ATTEMPT,
    attempt_place,
    attempts_in,
    begun_before,
    named_places,
    number_attempt,
    root_of,
)


def make(root: Path, *attempts: int) -> None:
    for number in attempts:
        Path(f"{attempt_place(str(root), number)}.ckpt").mkdir(parents=True)


def test_attempts_are_those_with_a_folder_of_records(tmp_path: Path) -> None:
    make(tmp_path / "run", 11, 2)
    (tmp_path / "run" / "attempt-00003").mkdir()
    (tmp_path / "run" / "notes.txt").touch()

    assert attempts_in(AttemptPlaces(), str(tmp_path / "run")) == [2, 11]
    assert attempts_in(AttemptPlaces(), str(tmp_path / "nowhere")) == []


def test_checkpoints_of_a_checkpointer_are_no_attempts_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "step-1.tar").touch()

    assert attempts_in(AttemptPlaces(), str(tmp_path)) == []
    with pytest.raises(InvalidName, match="holds checkpoints of a Checkpointer"):
        attempts_in(AttemptPlaces(), str(tmp_path), is_only_chain=True)


@pytest.mark.parametrize(
    ("existing", "wanted", "attempt", "earlier"),
    [
        ([], None, 0, ()),
        ([0, 1], None, 2, (1, 0)),
        ([0, 1], 1, 1, (0,)),
        ([0, 3], 7, 7, (3, 0)),
        ([0, 3], 1, 4, (3, 0)),
    ],
)
def test_an_attempt_is_never_numbered_below_the_newest(
    existing: list[int], wanted: int | None, attempt: int, earlier: tuple[int, ...]
) -> None:
    numbered = number_attempt(existing, wanted)

    assert (numbered.attempt, numbered.earlier) == (attempt, earlier)
    assert bool(numbered.note) is (wanted is not None and attempt != wanted)


def test_after_the_last_attempt_comes_none() -> None:
    with pytest.raises(ResumeError, match="another root"):
        number_attempt([MAX_ATTEMPT], None)


def test_an_attempt_that_finds_a_later_one_is_superseded() -> None:
    assert [each.attempt for each in begun_before("s3://b/run", [0, 1, 2], 2)] == [1, 0]
    with pytest.raises(Superseded, match="attempt 3"):
        begun_before("s3://b/run", [0, 3], 2)


def test_a_named_root_is_its_attempts_newest_first_and_then_itself(tmp_path: Path) -> None:
    make(tmp_path / "run", 0, 1)

    found = named_places(AttemptPlaces(), tmp_path / "run")

    assert [each.attempt for each in found] == [1, 0, None]
    assert all(each.origin is Origin.USER and each.may_be_foreign for each in found)
    assert root_of(found[0].uri) == found[-1].uri
    assert root_of("s3://b/elsewhere/x") is None
