from __future__ import annotations

import pytest

from chockstone.cli.output.short_ids import AmbiguousId, complete_id, shorten_ids

ONE, TWO, THREE = "6f1c2a3b-aaaa:train:0", "6f1c2a3b-aaaa:train:1", "99ab0000-bbbb:train:0"
KNOWN = [ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        (ONE, ONE),
        ("99", THREE),
        ("99:train:0", THREE),
        ("6f1c:train:1", TWO),
        ("6f1c2a3b-aaaa:train:0", ONE),
        ("77", None),
        ("99:train:1", None),
        ("", None),
    ],
)
def test_a_unique_prefix_stands_for_an_id(word: str, found: str | None) -> None:
    assert complete_id(word, KNOWN, noun="run") == found


def test_an_id_that_begins_another_one_means_itself() -> None:
    assert complete_id("s:train:1", ["s:train:1", "s:train:12"], noun="run") == "s:train:1"


def test_an_ambiguous_prefix_is_an_error_that_lists_the_candidates() -> None:
    with pytest.raises(AmbiguousId) as refused:
        complete_id("6f", KNOWN, noun="run")
    with pytest.raises(AmbiguousId, match="and 5 more"):
        complete_id("a", [f"a{n}" for n in range(15)], noun="checkpoint")

    assert str(refused.value) == f"'6f' is the beginning of 2 runs; add characters:\n  {ONE}\n  {TWO}"
    assert refused.value.exit_code == 2


def test_what_a_table_shows_can_be_typed() -> None:
    nearly = ["0123456789ab:train:0", "0123456789xy:train:0"]  # alike for longer than tables cut
    for ids in ([ONE], KNOWN, nearly, []):
        short = shorten_ids(ids)
        assert all(complete_id(short[each], ids, noun="run") == each for each in ids)

    assert shorten_ids(KNOWN) == {ONE: "6f1c2a3b:train:0", TWO: "6f1c2a3b:train:1", THREE: "99ab0000"}
