"""Trainings of two ranks under DDP and FSDP2: all ranks write one archive, and any number resumes from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.integrations.hf_rank_jobs import resume_alone, train_stop_and_resume
from support.rank_pool import RankPool, open_pool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    yield from open_pool()


def test_ddp_resumes_with_the_losses_of_one_left_alone(ranks: RankPool, tmp_path: Path) -> None:
    outcomes = ranks.run(2, train_stop_and_resume, tmp_path, False, False)

    assert [outcome["resumed"] for outcome in outcomes] == [outcome["alone"] for outcome in outcomes]
    assert [outcome["step"] for outcome in outcomes] == [4, 4]
    assert ranks.run(1, resume_alone, tmp_path) == [(6, 8)]


def test_fsdp2_resumes_past_a_flipped_bit_with_the_losses_of_one_left_alone(ranks: RankPool, tmp_path: Path) -> None:
    outcomes = ranks.run(2, train_stop_and_resume, tmp_path, True, True)

    assert [outcome["resumed"] for outcome in outcomes] == [outcome["alone"] for outcome in outcomes]
    assert [(outcome["step"], outcome["skipped"]) for outcome in outcomes] == [(2, 1), (2, 1)]
    assert ranks.run(1, resume_alone, tmp_path) == [(6, 8)]
