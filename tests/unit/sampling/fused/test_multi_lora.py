from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from chockstone.sampling.sampler import Sampler
from support.sampling.making import (
    Served,
    finish,
    llama,
    mixed_requests,
    qwen3,
    result_of,
    tokens_of,
)


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
def test_neighbours_and_their_adapters_change_nothing(
    served: Served, merge_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chockstone.sampling.fused.adapter.MERGE_BYTES", merge_bytes)
    adapters = [served.adapter(1), None, served.adapter(2, but=["lm_head", "embed_out"]), served.adapter(3, rank=2)]
    requests = mixed_requests()
    alone = [served.sample(one, adapter=adapters[number % 4], seed=number)[0] for number, one in enumerate(requests)]

    sampler = Sampler()
    for number, one in enumerate(requests):
        sampler.add(str(number), served.sampled, adapters[number % 4], one, seed=number)
        sampler.step()  # so that each joins while others decode
    together = finish(sampler)

    for number, expected in enumerate(alone):
        result = result_of(together[str(number)])
        assert tokens_of(result) == tokens_of(expected)
        for ours, theirs in zip(result.sequences, expected.sequences, strict=True):
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
@pytest.mark.parametrize("make", [qwen3, llama])
def test_several_threads_give_the_numbers_of_one(
    make: Callable[..., PreTrainedModel], merge_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chockstone.sampling.fused.adapter.MERGE_BYTES", merge_bytes)
    monkeypatch.setattr("chockstone.sampling.fused.batch.LIGHT", 0)
    monkeypatch.setattr("chockstone.sampling.fused.multi_lora._SMALL", 2000)
    served = Served(make(intermediate_size=64))
    requests, adapter = mixed_requests(), served.adapter(1)
    alone = served.sample(*requests, adapter=adapter)

    torch.set_num_threads(2)
    together = served.sample(*requests, adapter=adapter)

    for ours, theirs in zip(together, alone, strict=True):
        assert tokens_of(ours) == tokens_of(theirs)
        for one, other in zip(ours.sequences, theirs.sequences, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
