from __future__ import annotations

import numpy as np
import torch

from chockstone.sampling.fused.llama import FusedLlama
from chockstone.sampling.sampler import Sampler
from support.sampling.making import (
    Served,
    logprobs_of,
    qwen3,
    random_prompt,
    request,
    result_of,
)


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode(fused: Served) -> None:
    sampler = Sampler()
    sampler.add("short", fused.sampled, None, request(max_tokens=30), seed=1)
    for _ in range(3):
        sampler.step()
    prompt = random_prompt(3500)
    sampler.add("long", fused.sampled, None, request(prompt, max_tokens=2, ask={"prompt_logprobs": True}), seed=2)

    order = []
    outcomes = {}
    while sampler.has_work():
        for finished in sampler.step():
            order.append(finished.key)
            outcomes[finished.key] = finished.outcome

    expected = logprobs_of(fused.model, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    scores = result_of(outcomes["long"]).prompt_logprobs
    assert scores is not None
    np.testing.assert_allclose(scores[1:], expected, atol=1e-4)
    assert order == ["long", "short"]  # four chunks take four turns, and the short one kept its own


def test_half_precision_models_sample_close_to_their_own_forward() -> None:
    served = Served(qwen3(torch.bfloat16))
    assert isinstance(served.sampled.network, FusedLlama)
    prompt = random_prompt(20)

    (result,) = served.sample(request(prompt, 2, max_tokens=30), adapter=served.adapter(1, size=0.01))

    for sequence in result.sequences:
        tokens = [*prompt, *sequence.tokens.tolist()]
        expected = logprobs_of(served.model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        assert np.abs(sequence.logprobs - expected[19:].numpy()).mean() < 0.1
