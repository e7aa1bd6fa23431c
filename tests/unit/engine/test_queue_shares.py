from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chockstone.engine.queue_shares import QueueShares


def fill(shares: QueueShares, owner: str, amount: int = 1) -> int:
    """How much of it the user gets who asks for more and more."""
    taken = 0
    while shares.has_room(owner, amount):
        shares.add(owner, amount)
        taken += amount
    return taken


def test_one_user_alone_fills_three_quarters() -> None:
    assert fill(QueueShares(8192), "ann") == 6144
    assert fill(QueueShares(4), "ann") == 3


def test_a_user_who_comes_later_always_finds_room() -> None:
    shares = QueueShares(8192)

    got = [fill(shares, f"user {number}") for number in range(6)]

    assert got == [6144, 1536, 384, 96, 24, 6]


def test_users_who_flood_together_get_equal_shares() -> None:
    shares = QueueShares(8192)
    owners = [f"user {number}" for number in range(16)]
    hungry = set(owners)
    while hungry:
        for owner in owners:
            if shares.has_room(owner, 1):
                shares.add(owner, 1)
            else:
                hungry.discard(owner)

    held = {shares.held_by(owner) for owner in owners}
    assert held == {501, 502}
    assert shares.has_room("late", 1)


def test_a_user_who_holds_nothing_may_take_all_that_is_free() -> None:
    shares = QueueShares(100)

    assert shares.has_room("ann", 100)
    assert not shares.has_room("ann", 101)
    shares.add("ann", 60)
    assert shares.has_room("bob", 40)
    assert not shares.has_room("bob", 41)


def test_what_was_removed_is_free_again() -> None:
    shares = QueueShares(4)
    fill(shares, "ann")
    shares.remove("ann", 2)

    assert (shares.total, shares.held_by("ann")) == (1, 1)
    assert fill(shares, "bob") == 2


@given(
    limit=st.integers(1, 50),
    wishes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8), st.booleans()), max_size=80),
)
def test_the_limit_holds_and_nothing_is_lost(limit: int, wishes: list[tuple[str, int, bool]]) -> None:
    shares = QueueShares(limit)
    taken: list[tuple[str, int]] = []
    for owner, amount, is_end in wishes:
        if is_end and taken:
            shares.remove(*taken.pop(0))
        elif shares.has_room(owner, amount):
            shares.add(owner, amount)
            taken.append((owner, amount))
        assert shares.total == sum(amount for _, amount in taken) <= limit

    for one in taken:
        shares.remove(*one)
    assert shares.total == 0
    assert not any(map(shares.held_by, "abcd"))
