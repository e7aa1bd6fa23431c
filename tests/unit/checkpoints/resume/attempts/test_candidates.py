"""Candidates: each place once, and newest first by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.errors import InvalidName
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin, ranked
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces, normalise


def test_the_order_is_own_platform_numbered_lineage_user() -> None:
    given = [
        Candidate("s3://b/user", Origin.USER),
        Candidate("s3://b/a1", Origin.DERIVED, 1),
        Candidate("s3://b/lineage", Origin.LINEAGE),
        Candidate("s3://b/a2", Origin.DERIVED, 2),
        Candidate("s3://b/prev", Origin.PLATFORM),
        Candidate("s3://b/own", Origin.OWN, 3),
    ]

    assert [each.uri.rpartition("/")[2] for each in ranked(given)] == ["own", "prev", "a2", "a1", "lineage", "user"]


def test_a_place_given_twice_is_one_and_its_number_counts() -> None:
    given = [Candidate("s3://b//x/", Origin.PLATFORM), Candidate("s3://b/x", Origin.DERIVED, 4)]

    assert [(each.uri, each.attempt) for each in ranked(given)] == [("s3://b/x", 4)]


def test_what_the_platform_calls_previous_may_be_our_own() -> None:
    given = [Candidate("s3://b/x", Origin.OWN, 2), Candidate("s3://b/x/", Origin.PLATFORM, 1)]

    assert [each.origin for each in ranked(given)] == [Origin.OWN]


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
