"""Admission: checks of a sampling request before anything is computed for it."""

from __future__ import annotations

import math

import numpy as np

from chockstone.sampling.model import SampledModel
from chockstone.wire.codecs.samples import SampleRequest, SamplingParams
from chockstone.wire.failures import BadRequest


def check_request(model: SampledModel, request: SampleRequest, *, cache_bytes: int) -> int:
    """The maximum number of tokens of each sample. Raises BadRequest for what the caller must change."""
    _check_prompt(model, request)
    _check_params(model, request.params)
    _check_scoring(model, request)
    return _check_length(model, request, cache_bytes=cache_bytes)


def _check_prompt(model: SampledModel, request: SampleRequest) -> None:
    prompt = request.prompt
    if prompt.ndim != 1 or not len(prompt):
        raise BadRequest("the prompt is empty; give at least one token")
    if request.num_samples < 1:
        raise BadRequest(f"num_samples={request.num_samples!r}: ask for at least one sample")
    outside = np.flatnonzero((prompt < 0) | (prompt >= model.vocabulary))
    if len(outside):
        index = int(outside[0])
        raise BadRequest(
            f"prompt token {index} is {int(prompt[index])}, outside this model's vocabulary of {model.vocabulary}; "
            "encode the prompt with this model's tokenizer"
        )


def _check_params(model: SampledModel, params: SamplingParams) -> None:
    if params.max_tokens is not None and params.max_tokens < 1:
        raise BadRequest(f"max_tokens={params.max_tokens!r}: ask for at least one token")
    if not math.isfinite(params.temperature) or params.temperature < 0:
        raise BadRequest(f"temperature={params.temperature!r} is not a number from 0 up")
    if not 0 < params.top_p <= 1:
        raise BadRequest(f"top_p={params.top_p!r} is not above 0 and up to 1")
    if params.top_k < -1 or params.top_k == 0:
        raise BadRequest(f"top_k={params.top_k!r} is neither -1, which is off, nor a count from 1 up")
    if "" in params.stop_strings:
        raise BadRequest("an empty stop string would stop every sample before its first token; leave it out")
    for token in params.stop_tokens:
        if not 0 <= token < model.vocabulary:
            raise BadRequest(f"stop token {token!r} is outside this model's vocabulary of {model.vocabulary}")


def _check_scoring(model: SampledModel, request: SampleRequest) -> None:
    counts = {
        "topk_prompt_logprobs": request.topk_prompt_logprobs,
        "topk_sample_logprobs": request.topk_sample_logprobs,
        "prompt_alt_tokens_k": request.prompt_alt_tokens_k,
        "prompt_logprobs_last_n": request.prompt_logprobs_last_n or 0,
    }
    for name, count in counts.items():
        if count < 0:
            raise BadRequest(f"{name}={count!r} is negative")
        if count > model.vocabulary and name.startswith("topk"):
            raise BadRequest(f"{name}={count!r} is more than this model's vocabulary of {model.vocabulary}")
    if request.targets is None:
        return
    targets, rows = request.targets.tokens, len(request.prompt) - 1
    if targets.ndim != 2 or len(targets) != rows:
        raise BadRequest(f"target_prompt_logprobs is {targets.shape}; a prompt of {rows + 1} tokens needs ({rows}, K)")
    if targets.size and (targets.min() < -1 or targets.max() >= model.vocabulary):
        raise BadRequest(
            f"target_prompt_logprobs has a token outside this model's vocabulary of {model.vocabulary}; -1 skips a cell"
        )


def _check_length(model: SampledModel, request: SampleRequest, *, cache_bytes: int) -> int:
    length, wanted = len(request.prompt), request.params.max_tokens
    space = model.max_context - length
    if space == 0 and wanted == 1:
        space = 1  # scoring a full context: the one sampled token is never fed back
    if space < 1 or (wanted is not None and wanted > space):
        asked = "" if wanted is None else f" and max_tokens={wanted}"
        raise BadRequest(
            f"a prompt of {length} tokens{asked} does not fit this model's context of {model.max_context}; "
            f"shorten the prompt{'' if wanted is None else ' or ask for fewer tokens'}"
        )
    most = space if wanted is None else wanted
    if _fits(model, length, most, cache_bytes):
        return most
    if wanted is None:  # the cache is full before the context is: the largest number that fits
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if _fits(model, length, middle, cache_bytes) else (low, middle - 1)
        if low:
            return low
    raise BadRequest(
        f"a prompt of {length} tokens{'' if wanted is None else f' with max_tokens={wanted}'} needs more cache than "
        f"this server has ({cache_bytes / 2**20:.0f} MiB); ask for less, or serve with a larger sampling cache"
    )


def _fits(model: SampledModel, length: int, max_tokens: int, cache_bytes: int) -> bool:
    network = model.network
    row = network.room(length + max_tokens - 1) if max_tokens > 1 else 0
    return (length + row) * network.bytes_per_token <= cache_bytes
