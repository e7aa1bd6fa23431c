"""Candidates: each place once, and newest first by number."""

from __future__ import annotations

from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin, ranked


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
