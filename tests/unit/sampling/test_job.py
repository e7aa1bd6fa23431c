from __future__ import annotations

from typing import Any

import pytest

from chockstone.sampling.job import Job, make_job
from support.sampling.making import Served, random_prompt, request


def job_of(served: Served, length: int, **changes: Any) -> Job:
    model, asked = served.sampled, request(random_prompt(length), 2, **changes)
    prepared = model.network.prepare(None)
    return make_job("key", "ann", 3, model, prepared, asked, seed=1, max_tokens=asked.params.max_tokens or 1)


def test_a_job_reserves_cache_for_its_prompt_and_for_the_longest_row(fused: Served) -> None:
    network = fused.sampled.network

    job = job_of(fused, 30, max_tokens=200)

    assert job.decodes
    assert job.prefix_bytes == 30 * network.bytes_per_token
    assert job.row_bytes == network.room(30 + 199) * network.bytes_per_token


def test_a_job_that_scores_a_short_prompt_reserves_nothing(fused: Served) -> None:
    job = job_of(fused, 30, max_tokens=1, ask={"prompt_logprobs": True})

    assert not job.decodes
    assert (job.row_bytes, job.prefix_bytes) == (0, 0)


@pytest.mark.parametrize("asks", [True, False])
def test_a_scored_chunk_is_as_short_as_its_logits_need(served: Served, asks: bool) -> None:
    network = served.sampled.network

    job = job_of(served, 30, ask={"prompt_logprobs": asks})

    assert job.max_chunk_tokens == (network.scored_tokens_per_prefill if asks else network.tokens_per_prefill)


def test_each_granted_sample_moves_the_turn_behind_one_arrival(fused: Served) -> None:
    job = job_of(fused, 5)
    job.granted = 2

    assert job.turn == 3 + 2
