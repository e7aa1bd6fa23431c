from __future__ import annotations

from chockstone.sampling.round_robin import RoundRobin


def test_parties_take_turns_whatever_the_length_of_their_lines() -> None:
    rota: RoundRobin[str] = RoundRobin()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        rota.add(item[0], item)

    taken = []
    while rota:
        assert rota.first() not in taken
        taken.append(rota.take())

    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_party_that_comes_back_goes_behind_the_others() -> None:
    rota: RoundRobin[str] = RoundRobin()
    for item in ("a1", "b1", "b2"):
        rota.add(item[0], item)
    rota.add("a", rota.take())

    assert [rota.take() for _ in range(3)] == ["b1", "a1", "b2"]


def test_what_was_removed_is_not_taken() -> None:
    rota: RoundRobin[str] = RoundRobin()
    for item in ("a1", "b1", "b2"):
        rota.add(item[0], item)

    rota.remove("a", "a1")
    rota.remove("b", "b1")

    assert list(rota) == ["b2"]
    assert rota.take() == "b2"
    assert not rota
