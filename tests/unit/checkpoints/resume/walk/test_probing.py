"""Probes: many places at once, in their order, and none for longer than the deadline."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import InvalidName, StoreUnreachable
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces, FilePlace, PlaceListing
from chockstone.checkpoints.resume.walk.probing import Deadline, probe


def candidates(folder: Path, count: int) -> list[Candidate]:
    return [Candidate(f"{folder}/a{number}", Origin.DERIVED, number) for number in range(count)]


def test_results_come_in_the_order_of_the_candidates_and_errors_among_them(tmp_path: Path) -> None:
    asked = [*candidates(tmp_path, 30), Candidate("s3://whole-bucket", Origin.USER)]

    *found, refused = probe(AttemptPlaces(), asked, Deadline(60))

    assert [each.place.uri for each in found if isinstance(each, Attempt)] == [
        f"file://{tmp_path}/a{number}" for number in range(30)
    ]
    assert isinstance(refused, InvalidName)


def test_a_place_that_does_not_answer_is_unreachable_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def hang(place: FilePlace) -> PlaceListing:
        never.wait(60)
        return PlaceListing()

    monkeypatch.setattr(FilePlace, "listing", hang)
    started = time.monotonic()

    [found] = probe(AttemptPlaces(), candidates(tmp_path, 1), Deadline(0.05))

    assert isinstance(found, StoreUnreachable)
    assert time.monotonic() - started < 30
    never.set()


def test_time_that_is_given_back_does_not_count() -> None:
    deadline = Deadline(0.0)
    assert deadline.left == 0.0

    deadline.extend(60)

    assert deadline.left > 50
