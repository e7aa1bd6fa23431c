"""Completion requests: a sample as vLLM is asked for it, and which samples it can be asked for.

vLLM gives the logprobs of sampled tokens either as the model has them, which is right at temperature 1 (or 0)
whatever is cut off, or as they were sampled from, which is right at any temperature if nothing is cut off.
A sample for which neither holds is not for it; nor is one that asks for what it does not compute.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import SampleRequest, SamplingParams

MOST_ALTERNATIVES: Final = 20  # that a server gives unless it was told otherwise
_LOWEST_TEMPERATURE: Final = 0.01  # vLLM raises lower ones to it
_ANSWER_CELLS: Final = 1 << 20  # tokens and their alternatives in one answer; more would be too much JSON
_ALTERNATIVE_CELLS: Final = 1 << 26  # in all answers to a sample, 8 bytes each


@dataclass(frozen=True, slots=True)
class Ability:
    """What a server can do for one base model."""

    max_context: int
    is_tempered: bool  # its logprobs are those of the distribution that was sampled from
    has_head: bool  # it applies what an adapter has for the output layer; then it cannot score prompts


def can_answer(request: SampleRequest, facts: ModelFacts, ability: Ability, *, has_head: bool) -> bool:
    """Whether vLLM gives exactly what was asked for. What is not even a proper request, it cannot answer.

    ``has_head``: it is for an adapter of the output layer, perhaps among others.
    """
    params, k = request.params, request.topk_sample_logprobs
    if (has_head and not ability.has_head) or (_scores_prompt(request) and ability.has_head):
        return False
    if request.prompt_alt_tokens_k or request.targets is not None:
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
    """At the temperature of the sample, before anything is cut off."""
    if params.temperature == 0:
        return True
    if ability.is_tempered:
        return params.top_p == 1 and not 0 < params.top_k < facts.vocabulary
    return params.temperature == 1


def _scores_prompt(request: SampleRequest) -> bool:
    return request.prompt_logprobs or request.topk_prompt_logprobs > 0


def most_tokens(request: SampleRequest, facts: ModelFacts, ability: Ability) -> int:
    """That a sample of it may have."""
    context = ability.max_context if facts.max_context is None else min(facts.max_context, ability.max_context)
    space = context - len(request.prompt)
    return space if request.params.max_tokens is None else min(space, request.params.max_tokens)


def stop_tokens(params: SamplingParams, facts: ModelFacts) -> frozenset[int]:
    return frozenset(params.stop_tokens) | (facts.eos_tokens if params.stops_at_eos else frozenset())


def split_samples(request: SampleRequest, facts: ModelFacts, ability: Ability) -> list[range]:
    """Which samples are asked for together."""
    if request.params.temperature == 0:
        return [range(1)]  # the most likely tokens are the same each time
    each = most_tokens(request, facts, ability) * (1 + request.topk_sample_logprobs)
    together = max(1, _ANSWER_CELLS // each)
    count = request.num_samples
    return [range(first, min(first + together, count)) for first in range(0, count, together)]


def make_completion(
    request: SampleRequest, facts: ModelFacts, ability: Ability, samples: range, *, model: str, seed: int
) -> dict[str, Any]:  # Any: plain JSON
    """``model`` is the base model's name, or an adapter's. Every setting is given: a server has defaults of its own.

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
        "ignore_eos": True,  # for what stops a sample is known here, and named
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
    """vLLM gives sample i the seed plus i: requests with seeds 1 and 2 must not share theirs."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
