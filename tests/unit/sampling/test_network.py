from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.sampling.sampler import Sampler
from chockstone.wire.failures import Failure
from support.sampling.making import (
    Served,
    finish,
    logprobs_of,
    qwen3,
    random_prompt,
    request,
    result_of,
)


@pytest.mark.parametrize("method", ["prefill", "new_prefix", "decode"])
def test_a_model_that_raises_fails_its_requests_and_no_others(
    fused: Served, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Served(qwen3())

    def explode(*_: object) -> None:
        raise MemoryError("no more")

    network = other.sampled.network
    batch = network.new_batch()
    monkeypatch.setattr(network, "new_batch", lambda: batch)
    monkeypatch.setattr(batch if method == "decode" else network, method, explode)
    sampler = Sampler()
    sampler.add("bad", other.sampled, None, request(samples=2), seed=1)
    sampler.add("good", fused.sampled, None, request(), seed=1)

    outcomes = finish(sampler)

    assert outcomes["bad"] == Failure("MemoryError: no more", "server")
    result_of(outcomes["good"])


def test_many_prompts_are_scored_in_few_prefill_steps(served: Served) -> None:
    prompts = [random_prompt(300 + number, number) for number in range(9)]
    scoring = [request(prompt, max_tokens=1, ask={"prompt_logprobs": True}) for prompt in prompts]

    results = served.sample(*scoring)

    for prompt, result in zip(prompts, results, strict=True):
        expected = logprobs_of(served.model, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert result.prompt_logprobs is not None
        np.testing.assert_allclose(result.prompt_logprobs[1:], expected, atol=1e-4)
