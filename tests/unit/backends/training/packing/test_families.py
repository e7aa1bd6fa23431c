from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.training.packing.families import Content, SequenceFamily, _count_common, find_families

PROMPT = list(range(100, 120))
SYSTEM = list(range(200, 218))


def content(tokens: list[int]) -> Content:
    """The targets are the tokens themselves."""
    return np.array([tokens, tokens], dtype=np.int64).T


def find(*sequences: list[int]) -> list[SequenceFamily]:
    return sorted(find_families([content(tokens) for tokens in sequences]), key=lambda family: family.members)


def test_answers_to_one_prompt_are_a_family_longest_first() -> None:
    found = find([*PROMPT, 1], [5, 6], [*PROMPT, 2, 3], [*PROMPT, 4])

    assert found == [SequenceFamily((1,), 0), SequenceFamily((2, 0, 3), 20)]


def test_groups_with_one_system_prompt_keep_their_longer_beginnings() -> None:
    one, other = [*SYSTEM, *PROMPT], [*SYSTEM, *range(40, 60)]

    found = find([*one, 1], [*one, 2], [*one, 3], [*other, 1], [*other, 2], [*other, 3], [*SYSTEM, 7])

    assert found == [SequenceFamily((0, 1, 2), 38), SequenceFamily((3, 4, 5), 38), SequenceFamily((6,), 0)]


def test_many_chats_share_their_system_prompt() -> None:
    found = find(*([*SYSTEM, number, 1] for number in range(6)))

    assert found == [SequenceFamily((0, 1, 2, 3, 4, 5), 18)]


def test_a_short_beginning_is_not_shared() -> None:
    assert all(len(family.members) == 1 for family in find([*PROMPT[:15], 1], [*PROMPT[:15], 2]))


def test_targets_that_differ_end_the_common_beginning() -> None:
    one, other = content([*PROMPT, 1]), content([*PROMPT, 1])
    other[17, 1] = 3

    assert find_families([one, other]) == [SequenceFamily((0, 1), 17)]


def test_a_deep_tree_takes_no_deep_stack() -> None:
    tokens = np.arange(3000)

    families = find_families([content([*tokens[:length]]) for length in range(1, 3000, 2)])

    assert sorted(member for family in families for member in family.members) == list(range(1500))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=12))
def test_every_sequence_is_in_one_family_that_begins_as_it_says(drawn: list[tuple[int, int, int]]) -> None:
    contents = [content([7] * shared + [branch + 1] * own) for branch, shared, own in drawn]

    families = find_families(contents)

    assert sorted(member for family in families for member in family.members) == list(range(len(contents)))
    for family in families:
        first = contents[family.members[0]]
        assert all(_count_common(first, contents[member]) >= family.prefix for member in family.members)
        assert all(len(first) >= len(contents[member]) for member in family.members)
        assert (family.prefix >= 16) == (len(family.members) > 1)
