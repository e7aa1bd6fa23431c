from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chockstone.backends.micro_batches import Extent, plan_micro_batches

extents = st.lists(st.builds(Extent, st.integers(1, 50), st.integers(1, 3)), max_size=40)


@given(extents, st.integers(1, 120))
def test_every_datum_is_in_one_group_within_the_budget(extents: list[Extent], tokens: int) -> None:
    groups = plan_micro_batches(extents, tokens=tokens)

    assert sorted(index for group in groups for index in group) == list(range(len(extents)))
    for group in groups:
        assert len({extents[index].targets for index in group}) == 1
        assert len(group) == 1 or len(group) * max(extents[index].positions for index in group) <= tokens


def test_similar_lengths_go_together_longest_first() -> None:
    lengths = [3, 9, 3, 10, 4]

    groups = plan_micro_batches([Extent(n, 1) for n in lengths], tokens=20)

    assert groups == [(3, 1), (4, 0, 2)]
