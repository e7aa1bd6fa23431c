from __future__ import annotations

import copy

import pytest

from chockstone.trainers.errors import ResumeRefused
from chockstone.trainers.rollouts.loader import ShuffledLoader


def test_every_problem_comes_once_an_epoch_in_another_order_each_time() -> None:
    loader = ShuffledLoader(20, seed=3)

    draws = [loader.draw() for _ in range(60)]

    assert [draw.number for draw in draws] == list(range(60))
    epochs = [[draw.index for draw in draws if draw.epoch == epoch] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_is_the_seeds_own() -> None:
    orders = {tuple(ShuffledLoader(20, seed=seed).draw() for _ in range(1)) for seed in range(20)}

    assert len(orders) > 5
    one, other = ShuffledLoader(20, seed=3), ShuffledLoader(20, seed=3)
    assert [one.draw() for _ in range(50)] == [other.draw() for _ in range(50)]


@pytest.mark.parametrize("drawn", range(12))
def test_another_goes_on_where_it_was(drawn: int) -> None:
    loader, other = ShuffledLoader(5, seed=1), ShuffledLoader(5, seed=1)
    for _ in range(drawn):
        loader.draw()

    other.load_state_dict(copy.deepcopy(loader.state_dict()))

    assert [other.draw() for _ in range(12)] == [loader.draw() for _ in range(12)]


def test_an_order_that_was_saved_is_kept_even_if_another_would_be_made_now() -> None:
    loader = ShuffledLoader(5, seed=1)
    loader.draw()
    state = loader.state_dict()
    state["order"] = state["order"][::-1].copy()

    loader.load_state_dict(state)

    assert [loader.draw().index for _ in range(4)] == state["order"].tolist()[1:]


@pytest.mark.parametrize(("count", "seed"), [(6, 1), (5, 2)])
def test_the_state_of_another_is_refused_and_changes_nothing(count: int, seed: int) -> None:
    loader, untouched = ShuffledLoader(5, seed=1), ShuffledLoader(5, seed=1)

    with pytest.raises(ResumeRefused, match=rf"{count} problems shuffled with seed {seed}; this run has 5 with seed 1"):
        loader.load_state_dict(ShuffledLoader(count, seed=seed).state_dict())

    assert [loader.draw() for _ in range(9)] == [untouched.draw() for _ in range(9)]


def test_nothing_cannot_be_shuffled() -> None:
    with pytest.raises(ValueError, match="at least one problem"):
        ShuffledLoader(0, seed=1)


def test_a_loaders_state_is_not_changed_by_later_epochs() -> None:
    loader = ShuffledLoader(5, seed=1)
    loader.draw()
    state = loader.state_dict()
    order = state["order"].tolist()

    for _ in range(9):
        loader.draw()

    assert state["order"].tolist() == order
