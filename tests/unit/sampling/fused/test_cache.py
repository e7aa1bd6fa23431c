from __future__ import annotations

import numpy as np
import torch

from chockstone.sampling.sampler import Sampler
from chockstone.wire.failures import Failure
from support.sampling.making import (
    Served,
    finish,
    llama,
    logprobs_of,
    random_prompt,
    request,
    result_of,
    tokens_of,
)


def test_rows_grow_into_larger_buckets(fused: Served) -> None:
    prompts = [random_prompt(100, 1), random_prompt(3, 2)]
    sampler = Sampler()
    for number, prompt in enumerate(prompts):
        sampler.add(str(number), fused.sampled, None, request(prompt, 2, max_tokens=300, temperature=0.9), seed=number)

    outcomes = finish(sampler)

    for number, prompt in enumerate(prompts):
        for sequence in result_of(outcomes[str(number)]).sequences:
            tokens = [*prompt, *sequence.tokens.tolist()]
            expected = logprobs_of(fused.model, tokens, temperature=0.9)[:-1].gather(
                1, torch.tensor(tokens[1:])[:, None]
            )
            np.testing.assert_allclose(sequence.logprobs, expected[len(prompt) - 1 :, 0], atol=1e-4)


def test_a_row_that_breaks_while_decoding_leaves_no_trace_in_its_place() -> None:
    served = Served(llama())
    with torch.no_grad():
        served.model.get_input_embeddings().weight[50:54] = torch.inf  # feeding one of these breaks a row
    requests = [request([1, 2, number], 2, max_tokens=12, temperature=1.5) for number in range(40)]
    sampler = Sampler(max_sequences=10)
    for number, one in enumerate(requests):
        sampler.add(str(number), served.sampled, None, one, seed=number)

    outcomes = finish(sampler)

    broken = [number for number in range(40) if isinstance(outcomes[str(number)], Failure)]
    assert 3 < len(broken) < 37
    for number in set(range(40)) - set(broken):
        result = result_of(outcomes[str(number)])
        (alone,) = served.sample(requests[number], seed=number)
        assert tokens_of(result) == tokens_of(alone)
        for ours, theirs in zip(result.sequences, alone.sequences, strict=True):
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
