"""The gap probe: compares log-probabilities of a vLLM server with the exact ones, for the same weights and tokens.

The server continues fixed prompts with fixed seeds at temperature 1, as it does in rollouts. The exact path then scores
the tokens that the server drew. The prompts are random token ids, made from the size of the vocabulary: no tokenizer is
needed. Scores of prompts by vLLM are not compared: a server that adapts the output layer cannot score prompts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from chockstone.sampling.vllm.completion_answer import UnexpectedAnswer
from chockstone.sampling.vllm.completion_request import Ability
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import Floats, SampledSequence, SampleRequest, SamplingParams, Tokens
from chockstone.wire.sampler_gap import SamplerGap

PROMPTS: Final = 4
PROMPT_TOKENS: Final = 16
SAMPLED_TOKENS: Final = 32  # after each prompt
_SEED: Final = 2718
_ROUNDING: Final = 1e-3  # a log-probability may be above 0 by this
_DRAWN_FROM: Final = 3, 4  # of the vocabulary: its end may be padding, or tokens that vLLM refuses in prompts


class NotScored(Exception):
    """The exact path cannot score the probe; the message says why."""


@dataclass(frozen=True, slots=True)
class ExactPath:
    """Exact log-probabilities of one set of weights, and where its gap is reported."""

    archive: str | None  # names the weights; None: the base model itself
    score: Callable[[Sequence[Tokens]], Awaitable[Sequence[Floats]]]
    """Log-probabilities of all tokens of each text; the first token has none. Raises NotScored."""
    on_measured: Callable[[SamplerGap], Awaitable[None]]


def probe_requests(facts: ModelFacts, ability: Ability) -> tuple[SampleRequest, ...]:
    """The same for all weights of a model. Empty for a context that is too short for any prompt."""
    context = ability.max_context if facts.max_context is None else min(facts.max_context, ability.max_context)
    space = min(context - 1, PROMPT_TOKENS + SAMPLED_TOKENS)  # to score a text, the worker samples one more token
    length = min(PROMPT_TOKENS, space // 2)
    if length < 1:
        return ()
    share, whole = _DRAWN_FROM
    random = np.random.default_rng([_SEED, facts.vocabulary])
    prompts = random.integers(0, max(1, facts.vocabulary * share // whole), (PROMPTS, length), dtype=np.int32)
    return tuple(
        SampleRequest(prompt, 1, SamplingParams(max_tokens=space - length, seed=seed, stops_at_eos=False))
        for seed, prompt in enumerate(prompts)
    )


def drawn_text(request: SampleRequest, drawn: SampledSequence) -> Tokens:
    """The prompt and the tokens that the server drew. Raises UnexpectedAnswer for fewer tokens than were asked for."""
    if len(drawn.tokens) != request.params.max_tokens:
        raise UnexpectedAnswer(
            f"{len(drawn.tokens)} tokens, where {request.params.max_tokens} were asked for without a stop"
        )
    return np.concatenate([request.prompt, drawn.tokens])


def compare(drawn: Sequence[SampledSequence], exact: Sequence[Floats]) -> tuple[float, float, int]:
    """The mean and the largest absolute difference, and the number of tokens.

    Raises UnexpectedAnswer if the server's values are no log-probabilities, NotScored if the exact ones are none.
    """
    theirs = np.concatenate([sequence.logprobs for sequence in drawn]).astype(np.float64)
    ours = np.concatenate(
        [scores[len(scores) - len(sequence.tokens) :] for sequence, scores in zip(drawn, exact, strict=True)]
    ).astype(np.float64)
    if len(ours) != len(theirs) or not _are_logprobs(ours):
        raise NotScored("the worker did not return a log-probability for each token of the probe")
    if not _are_logprobs(theirs):
        raise UnexpectedAnswer("values that are no log-probabilities: not finite, or above 0")
    differences = np.abs(ours - theirs)
    return float(differences.mean()), float(differences.max()), len(differences)


def _are_logprobs(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    return bool(np.isfinite(values).all() and (values <= _ROUNDING).all())
