from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DigestMismatch,
    LocalResourceError,
    StoreDenied,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, OnUnreadable, WalkBack

STOPS = [verdict for verdict in Verdict if verdict.stops]
NEVER_COMMITTED = [Verdict.ABSENT, Verdict.EMPTY, Verdict.PARTIAL, Verdict.FOREIGN]
SKIPPED = [
    verdict for verdict in Verdict if not verdict.stops and verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIED)
]


def walked(*found: Verdict, on_unreadable: OnUnreadable = "stop") -> tuple[WalkBack[int], list[int]]:
    """Candidates 0, 1, … with these verdicts, whenever they are read; and which were read, in order."""
    walk = WalkBack(range(len(found)), on_unreadable=on_unreadable)
    read = []
    for candidate in walk:
        read.append(candidate)
        if walk.may_take(found[candidate]) and found[candidate] is not Verdict.SUPERSEDED:
            walk.accept(step=100 - 10 * candidate, verdict=found[candidate])
        else:
            walk.reject(found[candidate], "so it is", step=100 - 10 * candidate)
    return walk, read


def test_the_newest_good_one_is_taken_and_no_other_is_read() -> None:
    walk, read = walked(Verdict.VERIFIED, Verdict.VERIFIED)

    assert read == [0]
    assert walk.choice is not None and walk.choice.candidate == 0
    assert (walk.ending, walk.steps_lost, walk.skipped) == (Ending.TAKEN, 0, [])


@pytest.mark.parametrize("verdict", SKIPPED)
def test_what_cannot_be_used_is_walked_past_with_the_reason(verdict: Verdict) -> None:
    walk, _ = walked(verdict, Verdict.VERIFIED)

    assert walk.choice is not None and walk.choice.candidate == 1
    assert [(look.candidate, look.verdict, look.reason) for look in walk.skipped] == [(0, verdict, "so it is")]


@pytest.mark.parametrize("verdict", STOPS)
def test_what_cannot_be_judged_ends_the_walk(verdict: Verdict) -> None:
    walk, read = walked(Verdict.ABSENT, verdict, Verdict.VERIFIED)

    assert read == [0, 1]
    assert walk.choice is None and walk.ending is Ending.BLOCKED
    assert walk.blocked is not None and (walk.blocked.candidate, walk.blocked.verdict) == (1, verdict)


def test_what_is_corrupt_is_read_once_more() -> None:
    walk, read = walked(Verdict.CORRUPT, Verdict.VERIFIED)

    assert read == [0, 0, 1]
    assert [(look.candidate, look.readings) for look in walk.judged] == [(0, 2), (1, 1)]


def test_a_fault_of_the_first_reading_costs_nothing() -> None:
    walk = WalkBack(["a", "b"])
    for candidate in walk:
        if not walk.judged and candidate == "a" and walk._readings == 1:
            walk.failed(DigestMismatch("block 7 differs"))
            assert walk.will_retry
        else:
            walk.accept()

    assert walk.choice is not None and (walk.choice.candidate, walk.choice.readings) == ("a", 2)
    assert walk.skipped == []


def test_what_stops_at_the_second_reading_stops() -> None:
    walk = WalkBack(["a", "b"])
    for error, _ in zip([DigestMismatch("bad"), StoreUnreachable("down")], walk, strict=False):
        walk.failed(error)

    assert list(walk) == []
    assert [(look.candidate, look.verdict) for look in walk.judged] == [("a", Verdict.UNREACHABLE)]


def test_what_is_sure_is_not_read_again() -> None:
    walk = WalkBack([0, 1])
    read = []
    for candidate in walk:
        read.append(candidate)
        walk.reject(Verdict.CORRUPT, "its head was read twice", is_sure=True)

    assert (read, walk.ending) == ([0, 1], Ending.EXHAUSTED)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (StoreDenied("403"), Verdict.DENIED),
        (StoreUnreachable("503"), Verdict.UNREACHABLE),
        (UnsupportedArchive("newer"), Verdict.INCOMPATIBLE),
        (LocalResourceError("no room"), Verdict.LOCAL),
        (ZeroDivisionError("nobody knows"), Verdict.UNREACHABLE),
    ],
)
def test_an_error_is_judged_and_stops(error: Exception, verdict: Verdict) -> None:
    walk = WalkBack([0, 1])
    for _ in walk:
        assert walk.failed(error) is verdict

    assert [look.reason for look in walk.judged] == [str(error)]
    assert walk.ending is Ending.BLOCKED


def test_one_that_was_listed_and_is_gone_is_walked_past() -> None:
    walk = WalkBack([0, 1])
    for candidate in walk:
        if candidate:
            walk.accept()
        else:
            walk.failed(CheckpointMissing("gone"))

    assert walk.choice is not None and walk.choice.candidate == 1


@pytest.mark.parametrize("verdict", [Verdict.DENIED, Verdict.UNREACHABLE, Verdict.INCOMPATIBLE])
def test_older_goes_past_what_is_unreadable_to_something_verified_only(verdict: Verdict) -> None:
    walk, read = walked(verdict, Verdict.UNVERIFIED, Verdict.VERIFIED, on_unreadable="older")

    assert read == [0, 1, 2]
    assert walk.choice is not None and walk.choice.candidate == 2
    assert walk.blocked is not None and walk.blocked.candidate == 0
    assert walk.steps_lost == 20


def test_older_does_not_make_our_own_trouble_the_candidates() -> None:
    walk, read = walked(Verdict.LOCAL, Verdict.VERIFIED, on_unreadable="older")

    assert (read, walk.ending) == ([0], Ending.BLOCKED)


@pytest.mark.parametrize("verdict", STOPS)
def test_nothing_makes_a_fresh_start_of_what_cannot_be_judged(verdict: Verdict) -> None:
    for on_unreadable in ("stop", "older"):
        walk, _ = walked(verdict, Verdict.ABSENT, on_unreadable=on_unreadable)  # type: ignore[arg-type]  # both are

        assert walk.ending is Ending.BLOCKED


def test_a_fresh_start_needs_that_nothing_was_ever_committed() -> None:
    assert walked()[0].ending is Ending.FRESH
    assert walked(*NEVER_COMMITTED)[0].ending is Ending.FRESH
    for verdict in (Verdict.CORRUPT, Verdict.SUPERSEDED, Verdict.POISONED):
        assert walked(*NEVER_COMMITTED, verdict)[0].ending is Ending.EXHAUSTED


def test_a_walk_that_broke_off_is_no_fresh_start() -> None:
    walk = WalkBack([0, 1])
    with pytest.raises(KeyboardInterrupt):
        for _ in walk:
            raise KeyboardInterrupt

    assert walk.ending is Ending.BLOCKED


def test_a_candidate_of_which_nothing_is_said_stops_the_walk() -> None:
    walk = WalkBack([0, 1])

    assert list(walk) == [0]
    assert walk.blocked is not None and walk.blocked.verdict is Verdict.UNREACHABLE


def test_two_things_cannot_be_said_of_one() -> None:
    walk = WalkBack([0])
    for _ in walk:
        walk.accept()
        with pytest.raises(RuntimeError, match="nothing is being looked at"):
            walk.reject(Verdict.ABSENT, "")


def test_one_that_is_void_is_taken_where_it_stands_last() -> None:
    walk = WalkBack(["good", "void"])
    for candidate in walk:
        if candidate == "void":
            walk.accept(verdict=Verdict.SUPERSEDED, reason="nothing else is left")
        else:
            walk.reject(Verdict.CORRUPT, "it is damaged", is_sure=True)

    assert walk.ending is Ending.TAKEN
    assert walk.choice is not None and walk.choice.verdict is Verdict.SUPERSEDED


def test_steps_lost_are_counted_from_the_newest_that_was_committed() -> None:
    assert walked(Verdict.PARTIAL, Verdict.VERIFIED)[0].steps_lost == 0
    assert walked(Verdict.SUPERSEDED, Verdict.VERIFIED)[0].steps_lost == 0
    assert walked(Verdict.PARTIAL, Verdict.CORRUPT, Verdict.CORRUPT, Verdict.VERIFIED)[0].steps_lost == 20
    assert walked(Verdict.CORRUPT)[0].steps_lost is None


def test_steps_lost_are_not_guessed() -> None:
    walk = WalkBack([0, 1])
    for candidate in walk:
        if candidate:
            walk.accept(step=7)
        else:
            walk.reject(Verdict.CORRUPT, "not even its head can be read")

    assert walk.steps_lost is None


def test_candidates_may_come_in_pages() -> None:
    walk: WalkBack[int] = WalkBack()
    read = []
    for page in ([0, 1], [2, 3]):
        walk.add(page)
        for candidate in walk:
            read.append(candidate)
            if candidate == 2:
                walk.accept()
            else:
                walk.reject(Verdict.CORRUPT, "bad", is_sure=True)

    assert read == [0, 1, 2]
    assert walk.is_over


async def test_the_body_may_await() -> None:
    walk = WalkBack([0, 1])
    for candidate in walk:
        await asyncio.sleep(0)
        if candidate:
            walk.accept()
        else:
            walk.reject(Verdict.EMPTY, "nothing is in it")

    assert walk.ending is Ending.TAKEN


@given(st.lists(st.sampled_from(Verdict), max_size=8), st.sampled_from(["stop", "older"]))
def test_whatever_is_found_the_rules_hold(found: list[Verdict], on_unreadable: OnUnreadable) -> None:
    walk, read = walked(*found, on_unreadable=on_unreadable)

    assert [look.candidate for look in walk.judged] == list(range(len(walk.judged))), "each once, in order"
    assert max(map(read.count, read), default=0) <= 2
    before = [look.verdict for look in walk.skipped]
    if walk.choice is not None:
        assert walk.choice.verdict in (Verdict.VERIFIED, Verdict.UNVERIFIED)
        assert on_unreadable == "older" or not any(verdict.stops for verdict in before)
        assert walk.choice.verdict is Verdict.VERIFIED or not any(verdict.stops for verdict in before)
    elif any(verdict.stops for verdict in before):
        assert walk.ending is Ending.BLOCKED
    else:
        assert len(walk.judged) == len(found)
        assert walk.ending is (Ending.EXHAUSTED if any(verdict.was_committed for verdict in found) else Ending.FRESH)
