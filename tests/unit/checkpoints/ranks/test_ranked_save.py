from __future__ import annotations

from pathlib import Path

import pytest

import support.checkpoints.ranked_jobs as jobs
from chockstone.checkpoints import Archive, Checkpointer, verify_archive
from support.rank_pool import RankPool

MIB = 1024**2


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


@pytest.mark.parametrize(("world_size", "dimensions"), [(2, 1), (3, 1), (4, 1), (4, 2)])
def test_the_file_is_the_one_that_a_single_process_writes(
    ranks: RankPool, tmp_path: Path, alone: Path, world_size: int, dimensions: int
) -> None:
    said = ranks.run(world_size, jobs.save, tmp_path, dimensions)

    assert (tmp_path / "step-00000001.tar").read_bytes() == (alone / "step-00000001.tar").read_bytes()
    assert len(set(said)) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["step-00000001.tar"]


def test_the_file_is_the_same_where_parts_must_not_be_divided(ranks: RankPool, tmp_path: Path, alone: Path) -> None:
    ranks.run(3, jobs.save_in_parts, tmp_path)

    assert (tmp_path / "step-00000001.tar").read_bytes() == (alone / "step-00000001.tar").read_bytes()


def test_ranks_copy_write_and_read_only_their_part(ranks: RankPool, tmp_path: Path) -> None:
    said = ranks.run(4, jobs.save_rows, tmp_path)

    for copied, wrote, read, blocks in said:
        assert 5 * MIB <= copied <= 5 * MIB + 8192
        assert 4 * MIB <= wrote <= 7 * MIB
        assert blocks >= 20 * 4
        assert read <= 5 * 4 + 2  # those of its own, and the ones at their ends


def test_a_coroutine_saves_and_restores_as_one_of_the_ranks(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.save_async, tmp_path) == [True, True]


def test_a_rank_that_waits_makes_the_others_hurry(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.save_slowly, tmp_path) == [True, True]


def test_a_save_outlives_the_world_of_torch(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.save_and_part, tmp_path) == ["well", "well"]
    assert [path.name for path in tmp_path.glob("*.tar")] == ["step-00000001.tar"]


def test_every_tool_for_archives_takes_it(together: Path) -> None:
    with Archive.open(together / "step-00000001.tar") as archive:
        verify_archive(archive)
    with Checkpointer(together) as checkpointer:
        loaded = checkpointer.load()

    assert jobs.is_same(loaded, jobs.whole_state())
