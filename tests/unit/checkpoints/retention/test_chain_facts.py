from __future__ import annotations

from chockstone.checkpoints.retention.chain_facts import NO_CHAIN, ChainFacts, Dependent


def dependent(name: str | None) -> Dependent:
    return Dependent("file:///chain/attempt-00001", "000001-0001", name)


def test_an_archive_that_a_remaining_one_depends_on_is_needed() -> None:
    facts = ChainFacts(dependents={"a": [dependent("b")], "b": [dependent("c")]})

    assert facts.needed(["a", "b"]) == {"a": (dependent("b"),), "b": (dependent("c"),)}
    assert facts.needed(["a", "b", "c"]) == {}


def test_an_archive_that_another_store_depends_on_is_always_needed() -> None:
    facts = ChainFacts(dependents={"a": [dependent(None)]})

    assert list(facts.needed(["a"])) == ["a"]


def test_dependents_are_removed_before_what_they_depend_on() -> None:
    facts = ChainFacts(dependents={"a": [dependent("b")], "b": [dependent("c")]})

    assert facts.in_removal_order(["a", "b", "c"]) == ["c", "b", "a"]


def test_a_circle_is_removed_too() -> None:
    facts = ChainFacts(dependents={"a": [dependent("b")], "b": [dependent("a")]})

    assert sorted(facts.in_removal_order(["a", "b"])) == ["a", "b"]


def test_archives_of_no_chain_come_before_every_generation() -> None:
    facts = ChainFacts(numbers={"a": (1, 1)})

    assert facts.number("other") < facts.number("a")
    assert NO_CHAIN.number("a") == facts.number("other")
