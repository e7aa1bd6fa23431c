"""Decodes vLLM's answers into sample results. The answers come from outside and are checked.

Shapes: P prompt positions, K alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from chockstone.sampling.vllm.completion_request import stop_tokens
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import Floats, SampledSequence, SampleRequest, SampleResult, TopK

_EMPTY_LOGPROB: Final = -99999.0
_MOST_FLOAT32: Final = float(np.finfo(np.float32).max)
_TOKEN: Final = "token_id:"  # noqa: S105  # how vLLM writes a token id where text is expected


class UnexpectedAnswer(Exception):
    """The answer is not what vLLM sends; the message says why."""


class Unfinished(Exception):
    """The server aborted the sample; it can be retried."""


def read_completion(
    answer: Any,  # plain JSON, or anything
    request: SampleRequest,
    samples: range,
    *,
    facts: ModelFacts,
    most_tokens: int,
) -> SampleResult:
    """The samples ``samples`` of a request, of at most ``most_tokens`` tokens each.

    Raises UnexpectedAnswer or Unfinished.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        if len(choices) != len(samples):
            raise UnexpectedAnswer(f"{len(choices)} samples instead of {len(samples)}")
        logprobs, topk = (None, None) if samples.start else _prompt(choices[0].get("prompt_logprobs"), request)
        return SampleResult(
            sequences=tuple(_sequence(choice, request, facts, most_tokens) for choice in choices),
            prompt_logprobs=logprobs if request.prompt_logprobs else None,
            topk_prompt_logprobs=topk,
            prompt_cache_hit_tokens=_cached(answer),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise UnexpectedAnswer(f"{type(error).__name__}: {error}") from error


def _sequence(
    choice: Mapping[str, Any], request: SampleRequest, facts: ModelFacts, most_tokens: int
) -> SampledSequence:
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise Unfinished(f"a sample ended with {reason!r}")
    tokens, scores = choice["token_ids"], choice["logprobs"]
    logprobs = [_finite(logprob) for logprob in scores["token_logprobs"]]
    if not 0 < len(tokens) == len(logprobs) <= most_tokens:
        raise UnexpectedAnswer(f"{len(tokens)} tokens and {len(logprobs)} logprobs, where {most_tokens} were asked for")
    if not all(type(token) is int and 0 <= token < facts.vocabulary for token in tokens):
        raise UnexpectedAnswer("a token that the model does not have")
    topk = None
    if k := request.topk_sample_logprobs:
        topk = _empty_topk(len(tokens), k)
        for row, (token, rivals) in enumerate(zip(tokens, scores["top_logprobs"], strict=True)):
            pairs = [(int(name.removeprefix(_TOKEN)), logprob) for name, logprob in rivals.items()]
            _fill(topk, row, pairs, beside=token)
    return SampledSequence(
        tokens=np.array(tokens, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        stop_reason="stop" if reason == "stop" or tokens[-1] in stop_tokens(request.params, facts) else "length",
        topk=topk,
    )


def _prompt(scores: Any, request: SampleRequest) -> tuple[Floats | None, TopK | None]:
    if not (request.prompt_logprobs or request.topk_prompt_logprobs):
        return None, None
    length, k = len(request.prompt), request.topk_prompt_logprobs
    if len(scores) != length:
        raise UnexpectedAnswer(f"{len(scores)} scores of a prompt of {length} tokens")
    logprobs = np.full(length, np.nan, np.float32)
    topk = _empty_topk(length, k) if k else None
    first = 1 if request.prompt_logprobs_last_n is None else max(1, length - request.prompt_logprobs_last_n)
    for position in range(first, length):
        token, scored = int(request.prompt[position]), scores[position]
        logprobs[position] = _finite(scored[str(token)]["logprob"])
        if topk is not None:
            _fill(topk, position, [(int(name), each["logprob"]) for name, each in scored.items()], beside=token)
    return logprobs, topk


def _finite(logprob: Any) -> float:
    value = float(logprob)
    if not abs(value) <= _MOST_FLOAT32:  # also of NaN
        raise UnexpectedAnswer("a log-probability that is not a finite number")
    return value


def _fill(topk: TopK, row: int, pairs: list[tuple[int, float]], *, beside: int) -> None:
    """The k most likely, best first. vLLM adds ``beside``, the chosen token, if it is not among them."""
    k = topk.tokens.shape[1]
    if len(pairs) > k:
        pairs = [pair for pair in pairs if pair[0] != beside]
    pairs = sorted(pairs, key=lambda pair: -pair[1])[:k]
    topk.tokens[row, : len(pairs)] = [token for token, _ in pairs]
    topk.logprobs[row, : len(pairs)] = [logprob for _, logprob in pairs]


def _empty_topk(positions: int, k: int) -> TopK:
    return TopK(np.zeros((positions, k), np.int32), np.full((positions, k), _EMPTY_LOGPROB, np.float32))


def _cached(answer: Mapping[str, Any]) -> int:
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def join_results(parts: list[SampleResult], request: SampleRequest) -> SampleResult:
    """The whole result from its parts; the first one has the prompt's scores."""
    sequences = tuple(sequence for part in parts for sequence in part.sequences)
    if len(sequences) < request.num_samples:  # all of them are the same
        sequences = sequences[:1] * request.num_samples
    return replace(parts[0], sequences=sequences)
