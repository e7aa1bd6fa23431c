"""State of real trainings: FSDP2, DDP, torch's own state dicts."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.checkpoints.fsdp_jobs as jobs
from support.rank_pool import RankPool


def test_an_fsdp_training_goes_on_with_another_number_of_ranks(ranks: RankPool, tmp_path: Path) -> None:
    went_on = ranks.run(2, jobs.fsdp, tmp_path, "save")

    alike = ranks.run(2, jobs.fsdp, tmp_path, "restore")
    alone = ranks.run(1, jobs.fsdp, tmp_path, "restore")
    more = ranks.run(4, jobs.fsdp, tmp_path, "restore")

    assert alike == went_on
    for losses in (*alone, *more):
        assert losses == pytest.approx(went_on[0], rel=1e-5)


def test_what_one_process_trained_ranks_go_on_with(ranks: RankPool, tmp_path: Path) -> None:
    [went_on] = ranks.run(1, jobs.fsdp, tmp_path, "save")

    for losses in ranks.run(3, jobs.fsdp, tmp_path, "restore"):
        assert losses == pytest.approx(went_on, rel=1e-5)


def test_state_dicts_of_torch_come_back_bit_by_bit(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, jobs.state_dicts, tmp_path) == [True, True]


def test_replicas_save_one_archive_between_them(ranks: RankPool, tmp_path: Path) -> None:
    went_on = ranks.run(2, jobs.ddp, tmp_path, "save")

    assert ranks.run(2, jobs.ddp, tmp_path, "restore") == went_on
    assert len(list(tmp_path.glob("*.tar"))) == 1
