from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.training.micro_batches import DatumExtent, deal, plan_micro_batches

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
