from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.training.micro_batches import DatumExtent, deal, plan_micro_batches, plan_packed
from chockstone.backends.training.packing.families import Content

extents = st.lists(st.builds(DatumExtent, st.integers(1, 50), st.integers(1, 3)), max_size=40)


@given(extents, st.integers(1, 120))
def test_every_datum_is_in_one_group_within_the_budget(extents: list[DatumExtent], tokens: int) -> None:
    groups = plan_micro_batches(extents, tokens=tokens)

    assert sorted(index for group in groups for index in group) == list(range(len(extents)))
    for group in groups:
        assert len({extents[index].targets for index in group}) == 1
        assert len(group) == 1 or len(group) * max(extents[index].positions for index in group) <= tokens


def test_similar_lengths_go_together_longest_first() -> None:
    lengths = [3, 9, 3, 10, 4]

    groups = plan_micro_batches([DatumExtent(n, 1) for n in lengths], tokens=20)

    assert groups == [(3, 1), (4, 0, 2)]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("lengths", [[5], [5, 5], [20, 20, 20, 20, 20], [9, 8, 7, 6, 5, 4, 3, 2, 1], [30, 20, 10, 1]])
def test_every_datum_is_dealt_to_one_process(lengths: list[int], processes: int) -> None:
    groups = plan_micro_batches([DatumExtent(n, 1) for n in lengths], tokens=20)

    rounds = list(deal(groups, processes=processes))

    assert sorted(i for shares in rounds for share in shares for i in share) == list(range(len(lengths)))
    assert all(len(shares) == processes and any(shares) for shares in rounds)
    if processes == 1:
        assert rounds == [(group,) for group in groups]


def test_what_cannot_be_dealt_whole_is_split() -> None:
    assert list(deal([(0, 1), (2,), (3, 4, 5)], processes=2)) == [((0, 1), (2,)), ((3, 5), (4,))]


def content(tokens: list[int], targets: int = 1) -> Content:
    return np.array([tokens] * (1 + targets), dtype=np.int64).T


def flat_size(contents: list[Content], group: tuple[int, ...]) -> int:
    return len(
        {tuple(contents[index][: place + 1].flatten()) for index in group for place in range(len(contents[index]))}
    )


drawn = st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(0, 3), st.integers(1, 2))


@given(st.lists(drawn, max_size=30), st.integers(1, 120))
def test_packed_groups_have_every_datum_once_within_the_budget(
    sizes: list[tuple[int, int, int, int]], tokens: int
) -> None:
    contents = [content([7] * shared + [branch + 1] * own, targets) for shared, own, branch, targets in sizes]

    groups = plan_packed(contents, tokens=tokens)

    assert sorted(index for group in groups for index in group) == list(range(len(contents)))
    for group in groups:
        assert len({contents[index].shape[1] for index in group}) == 1
        assert len(group) == 1 or flat_size(contents, group) <= tokens
        assert [len(contents[i]) for i in group] == sorted((len(contents[i]) for i in group), reverse=True)


def test_short_datums_fill_what_long_ones_leave() -> None:
    contents = [content([index] * length) for index, length in enumerate((12, 11, 8, 7, 2))]

    assert plan_packed(contents, tokens=20) == [(0, 2), (1, 3, 4)]


def test_a_family_larger_than_the_budget_is_split() -> None:
    prompt = list(range(100, 120))
    contents = [content([*prompt, *[answer] * 10]) for answer in range(5)]

    assert plan_packed(contents, tokens=60) == [(0, 1, 2, 3), (4,)]


def test_many_datums_are_planned_in_time() -> None:
    contents = [content([index, 1, 2]) for index in range(5000)]

    assert len(plan_packed(contents, tokens=5)) == 5000
