"""Restores by several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.checkpoints.ranked_jobs as jobs
from chockstone.checkpoints import Checkpointer
from support.rank_pool import RankPool


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state as one process saves it."""
    place = tmp_path_factory.mktemp("alone")
    jobs.save(0, place)
    return place


@pytest.fixture(scope="module")
def together(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, as two ranks save it."""
    place = tmp_path_factory.mktemp("together")
    ranks.run(2, jobs.save, place)
    return place


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_what_two_ranks_saved_any_number_restores(ranks: RankPool, together: Path, world_size: int) -> None:
    said = ranks.run(world_size, jobs.restore, together)

    assert all(is_same and step == 1 for is_same, step in said)


@pytest.mark.parametrize(("world_size", "dimensions"), [(2, 1), (4, 2)])
def test_what_one_process_saved_ranks_restore(ranks: RankPool, alone: Path, world_size: int, dimensions: int) -> None:
    said = ranks.run(world_size, jobs.restore, alone, dimensions)

    assert all(is_same and step == 1 for is_same, step in said)


def test_a_process_may_be_another_rank_the_next_time(ranks: RankPool, together: Path) -> None:
    for is_turned in (False, True):
        said = ranks.run(2, jobs.restore, together, is_turned=is_turned)

        assert all(is_same for is_same, _ in said)


def test_a_first_start_is_one_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.restore_nothing, tmp_path) == [None, None]


def test_checkpoints_of_other_kinds_alone_are_a_first_start_on_no_rank(ranks: RankPool, tmp_path: Path) -> None:
    with Checkpointer(tmp_path, ranks="off") as checkpointer:
        checkpointer.save({"x": 1}, step=1, kind="full")

    first, second = ranks.run(2, jobs.restore_missing, tmp_path)

    assert "only of kind 'full'" in first and second == f"rank 0: {first}"


def test_ranks_wait_for_one_that_takes_long_to_read(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.restore_slowly, tmp_path) == [True, True]
