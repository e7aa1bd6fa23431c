from __future__ import annotations

from chockstone.sampling.round_robin import RoundRobin


def test_parties_take_turns_whatever_the_length_of_their_lines() -> None:
    queue: RoundRobin[str] = RoundRobin()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(item[0], item)

    taken = []
    while queue:
        assert queue.first() not in taken
        taken.append(queue.take())

    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_party_that_comes_back_goes_behind_the_others() -> None:
    queue: RoundRobin[str] = RoundRobin()
    for item in ("a1", "b1", "b2"):
        queue.add(item[0], item)
    queue.add("a", queue.take())

    assert [queue.take() for _ in range(3)] == ["b1", "a1", "b2"]


def test_what_was_removed_is_not_taken() -> None:
    queue: RoundRobin[str] = RoundRobin()
    for item in ("a1", "b1", "b2"):
        queue.add(item[0], item)

    queue.remove("a", "a1")
    queue.remove("b", "b1")

    assert list(queue) == ["b2"]
    assert queue.take() == "b2"
    assert not queue
