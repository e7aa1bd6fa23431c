"""Completion requests: encodes a sample as a request to vLLM, and decides which samples vLLM can serve.

vLLM returns the logprobs of sampled tokens either as the model computes them, which is right at temperature 1 or 0 with
any truncation, or of the distribution that was sampled from, which is right at any temperature without truncation. If
neither is right, or the request asks for what vLLM does not compute, the sample is not sent to vLLM.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import SampleRequest, SamplingParams

MOST_ALTERNATIVES: Final = 20  # the default limit of a server
_LOWEST_TEMPERATURE: Final = 0.01  # vLLM raises lower temperatures to this
_ANSWER_CELLS: Final = 1 << 20  # tokens and alternatives in one answer, to limit the size of its JSON
_ALTERNATIVE_CELLS: Final = 1 << 26  # in all answers to one request, 8 bytes each


@dataclass(frozen=True, slots=True)
class Ability:
    """What a server can do for one base model."""

    max_context: int
    is_tempered: bool  # it returns logprobs of the distribution that was sampled from
    has_head: bool  # it applies adapters to the output layer; then it cannot score prompts


def can_answer(request: SampleRequest, facts: ModelFacts, ability: Ability, *, has_head: bool) -> bool:
    """Whether vLLM gives exactly what was asked for. False for invalid requests.

    ``has_head``: the adapter changes the output layer.
    """
    params, k = request.params, request.topk_sample_logprobs
    if (has_head and not ability.has_head) or (_scores_prompt(request) and ability.has_head):
        return False
    if request.prompt_alt_tokens_k or request.targets is not None:
        return False
    if request.constraint is not None:  # its log-probabilities are those of the constrained distribution
        return False
    if max(k, request.topk_prompt_logprobs) > min(MOST_ALTERNATIVES, facts.vocabulary):
        return False
    if not len(request.prompt) or request.prompt.min() < 0 or request.prompt.max() >= facts.vocabulary:
        return False
    if "" in params.stop_strings or any(token >= facts.vocabulary for token in params.stop_tokens):
        return False
    if 0 < params.temperature < _LOWEST_TEMPERATURE or not _has_logprobs(params, facts, ability):
        return False
    most = most_tokens(request, facts, ability)
    if most < 1 or (params.max_tokens is not None and params.max_tokens > most):
        return False
    return request.num_samples * most * k <= _ALTERNATIVE_CELLS


def _has_logprobs(params: SamplingParams, facts: ModelFacts, ability: Ability) -> bool:
    """Whether vLLM returns logprobs at the temperature of the sample, before truncation."""
    if params.temperature == 0:
        return True
    if ability.is_tempered:
        return params.top_p == 1 and not 0 < params.top_k < facts.vocabulary
    return params.temperature == 1


def _scores_prompt(request: SampleRequest) -> bool:
    return request.prompt_logprobs or request.topk_prompt_logprobs > 0


def most_tokens(request: SampleRequest, facts: ModelFacts, ability: Ability) -> int:
    """Maximum number of tokens of a sample."""
    context = ability.max_context if facts.max_context is None else min(facts.max_context, ability.max_context)
    space = context - len(request.prompt)
    return space if request.params.max_tokens is None else min(space, request.params.max_tokens)


def stop_tokens(params: SamplingParams, facts: ModelFacts) -> frozenset[int]:
    return frozenset(params.stop_tokens) | (facts.eos_tokens if params.stops_at_eos else frozenset())


def split_samples(request: SampleRequest, facts: ModelFacts, ability: Ability) -> list[range]:
    """Groups of samples that are requested together."""
    if request.params.temperature == 0:
        return [range(1)]  # greedy: all samples are the same
    each = most_tokens(request, facts, ability) * (1 + request.topk_sample_logprobs)
    together = max(1, _ANSWER_CELLS // each)
    count = request.num_samples
    return [range(first, min(first + together, count)) for first in range(0, count, together)]


def make_completion(
    request: SampleRequest, facts: ModelFacts, ability: Ability, samples: range, *, model: str, seed: int
) -> dict[str, Any]:  # Any: plain JSON
    """``model`` names the base model or an adapter. Every setting is sent, since the defaults of servers differ.

    The prompt is scored with the first of the samples.
    """
    params = request.params
    body: dict[str, Any] = {
        "model": model,
        "prompt": request.prompt.tolist(),
        "add_special_tokens": False,
        "n": len(samples),
        "max_tokens": most_tokens(request, facts, ability),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(0, params.top_k),
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": _spread(seed if params.seed is None else params.seed) + samples.start,
        "ignore_eos": True,  # our own list of stop tokens is sent
        "stop_token_ids": sorted(stop_tokens(params, facts)),
        "stop": list(params.stop_strings),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": request.topk_sample_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if not samples.start and _scores_prompt(request):
        body["prompt_logprobs"] = request.topk_prompt_logprobs
    return body


def _spread(seed: int) -> int:
    """Spread seeds: vLLM uses seed + i for sample i, and requests with seeds 1 and 2 must not share samples."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
