"""One attempt as storage shows it: which generations count, which are superseded, and when it is settled."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import (
    Generation,
    Kind,
    NewestCommit,
    claim_record,
    newest_commit_record,
)
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces
from chockstone.checkpoints.resume.attempts.write_lease import new_claim
from chockstone.checkpoints.stores.store import SUFFIX


@pytest.fixture
def place(tmp_path: Path) -> AttemptPlace:
    return AttemptPlaces().open(tmp_path / "run")


def enter(place: AttemptPlace, number: int, kind: Kind, newest: Generation | None) -> None:
    claim = new_claim(
        kind, by=place.uri, attempt=0, identity={"chain": "run"}, given=(), foreign=(), had_flyte_native=False
    )
    assert place.put_if_absent(claim_record(number), claim.encode())
    assert place.put_if_absent(newest_commit_record(number, kind), NewestCommit(newest).encode())


def commit(tmp_path: Path, *generations: Generation) -> None:
    for each in generations:
        (tmp_path / "run.ckpt" / f"{each.name}{SUFFIX}").write_bytes(b"an archive")


def test_generations_are_listed_newest_first(place: AttemptPlace, tmp_path: Path) -> None:
    enter(place, 1, "claim", None)
    commit(tmp_path, Generation(1, 1), Generation(10, 1), Generation(2, 1))

    assert [each.number for each in Attempt.inspect(place).generations] == [10, 2, 1]


def test_what_was_committed_after_a_fence_is_superseded(place: AttemptPlace, tmp_path: Path) -> None:
    enter(place, 1, "claim", None)
    enter(place, 2, "fence", Generation(1, 1))
    commit(tmp_path, Generation(1, 1), Generation(2, 1))
    attempt = Attempt.inspect(place)

    assert attempt.superseded() == {Generation(2, 1)}
    assert attempt.newest_valid() == Generation(1, 1)


def test_what_a_later_incarnation_committed_counts(place: AttemptPlace, tmp_path: Path) -> None:
    enter(place, 1, "claim", None)
    enter(place, 2, "claim", Generation(1, 1))
    commit(tmp_path, Generation(1, 1), Generation(2, 2))

    assert Attempt.inspect(place).superseded() == set()


def test_a_commit_that_records_name_and_nobody_finds_is_missing(place: AttemptPlace) -> None:
    enter(place, 1, "claim", None)
    assert Attempt.inspect(place).missing_generation() is None

    enter(place, 2, "fence", Generation(3, 1))

    assert Attempt.inspect(place).missing_generation() == Generation(3, 1)


def test_only_a_fenced_place_without_anything_to_restore_is_settled(place: AttemptPlace, tmp_path: Path) -> None:
    enter(place, 1, "claim", None)
    assert not Attempt.inspect(place).is_settled(), "its process may still commit"

    enter(place, 2, "fence", None)
    assert Attempt.inspect(place).is_settled()

    commit(tmp_path, Generation(1, 3))
    assert not Attempt.inspect(place).is_settled()
    assert Attempt.inspect(place).is_settled({(place.uri, "000001-0003")}), "a reference is nothing of its own"


def test_restores_that_did_not_end_are_counted_by_generation(place: AttemptPlace) -> None:
    for record in ("trials/000001-0001.0000.json", "trials/000001-0001.0001.json", "trials/000002-0001.0000.json"):
        assert place.put_if_absent(record, b"{}\n")

    assert Attempt.inspect(place).failed_restores(Generation(1, 1)) == 2
