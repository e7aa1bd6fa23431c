from __future__ import annotations

import numpy as np
import torch

from chockstone.sampling.network import Network, PromptChunk
from support.sampling.making import Served, logprobs_of, random_prompt


def make_chunk(network: Network, prompt: list[int], start: int, stop: int, prefix: torch.Tensor) -> PromptChunk:
    return PromptChunk(np.array(prompt[start:stop]), start, prefix, network.prepare(None), is_scored=True)


@torch.inference_mode()
def test_chunks_of_several_prompts_attend_to_their_own_prompt_only(fused: Served) -> None:
    network = fused.sampled.network
    first, second = random_prompt(20, 1), random_prompt(9, 2)
    prefixes = [network.new_prefix(len(prompt)) for prompt in (first, second)]
    network.prefill([make_chunk(network, first, 0, 7, prefixes[0])])

    chunks = [make_chunk(network, second, 0, 9, prefixes[1]), make_chunk(network, first, 7, 20, prefixes[0])]
    result = network.prefill(chunks)

    own = logprobs_of(fused.model, second)
    torch.testing.assert_close(result.logits(0, 0, 9).log_softmax(-1), own, atol=1e-4, rtol=0)
    rest = logprobs_of(fused.model, first)[7:]
    torch.testing.assert_close(result.logits(1, 7, 20).log_softmax(-1), rest, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        result.last_logits([0, 1]).log_softmax(-1), torch.stack((own[-1], rest[-1])), atol=1e-4, rtol=0
    )


@torch.inference_mode()
def test_a_prefix_holds_the_keys_and_values_of_every_position(fused: Served) -> None:
    network, prompt = fused.sampled.network, random_prompt(12)
    whole, in_chunks = network.new_prefix(12).fill_(torch.nan), network.new_prefix(12).fill_(torch.nan)

    network.prefill([make_chunk(network, prompt, 0, 12, whole)])
    for start in (0, 5, 10):
        network.prefill([make_chunk(network, prompt, start, min(12, start + 5), in_chunks)])

    torch.testing.assert_close(in_chunks, whole, atol=1e-5, rtol=1e-5)
