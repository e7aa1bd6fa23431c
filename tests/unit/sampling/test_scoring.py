from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chockstone.sampling.scoring import EMPTY_LOGPROB
from chockstone.wire.codecs.samples import SampleResult, Targets
from support.sampling.making import VOCABULARY, Served, logprobs_of, random_prompt, request

PROMPT = random_prompt(25, 3)


def ask(served: Served, **questions: Any) -> SampleResult:
    (result,) = served.sample(request(PROMPT, max_tokens=1, temperature=0.5, ask=questions))
    return result


@pytest.fixture
def expected(served: Served) -> torch.Tensor:
    return logprobs_of(served.model, PROMPT)


def own(expected: torch.Tensor) -> np.ndarray:
    return expected[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()


@pytest.fixture(autouse=True)
def _few_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.sampling.sampler._LOGITS", 4 * VOCABULARY)


def test_prompt_logprobs_are_at_temperature_one_and_the_first_is_nan(served: Served, expected: torch.Tensor) -> None:
    scores = ask(served, prompt_logprobs=True).prompt_logprobs

    assert scores is not None and scores.dtype == np.float32
    assert np.isnan(scores[0])
    np.testing.assert_allclose(scores[1:], own(expected), atol=1e-4)


@pytest.mark.parametrize("last_n", [0, 1, 10, 24, 25, 99])
def test_only_the_last_n_are_computed(served: Served, expected: torch.Tensor, last_n: int) -> None:
    result = ask(served, prompt_logprobs=True, topk_prompt_logprobs=2, prompt_logprobs_last_n=last_n)

    shown = min(last_n, 24)
    assert result.prompt_logprobs is not None and result.topk_prompt_logprobs is not None
    assert np.isnan(result.prompt_logprobs).sum() == 25 - shown
    np.testing.assert_allclose(result.prompt_logprobs[25 - shown :], own(expected)[24 - shown :], atol=1e-4)
    is_empty = (result.topk_prompt_logprobs.logprobs == EMPTY_LOGPROB).all(1)
    assert is_empty.tolist() == [True] * (25 - shown) + [False] * shown


def test_topk_has_an_empty_first_row_and_the_best_first(served: Served, expected: torch.Tensor) -> None:
    topk = ask(served, topk_prompt_logprobs=3).topk_prompt_logprobs

    assert topk is not None
    assert topk.tokens[0].tolist() == [0, 0, 0]
    assert topk.logprobs[0].tolist() == [EMPTY_LOGPROB] * 3
    best = expected[:-1].topk(3)
    assert topk.tokens[1:].tolist() == best.indices.tolist()
    np.testing.assert_allclose(topk.logprobs[1:], best.values, atol=1e-4)


def test_alternatives_are_drawn_at_every_position_but_the_first(served: Served, expected: torch.Tensor) -> None:
    result = ask(served, prompt_alt_tokens_k=400, topk_prompt_logprobs=2, prompt_logprobs_last_n=3)

    drawn = result.prompt_alt_tokens
    assert drawn is not None and result.topk_prompt_logprobs is not None
    tokens = torch.from_numpy(drawn.tokens).long()
    np.testing.assert_allclose(drawn.logprobs, expected[:-1].gather(1, tokens), atol=1e-4)
    drawn_from = (expected[:-1] / 0.5).softmax(-1)
    np.testing.assert_allclose(drawn.logprobs.mean(), (drawn_from * expected[:-1]).sum(-1).mean(), atol=0.05)


def test_targets_are_scored_where_there_are_any(served: Served, expected: torch.Tensor) -> None:
    targets = np.random.default_rng(1).integers(0, VOCABULARY, (24, 3))
    targets[5] = -1
    targets[7, 1] = -1

    scores = ask(served, targets=Targets(targets, is_sparse=False)).target_prompt_logprobs

    wanted = expected[:-1].gather(1, torch.from_numpy(np.maximum(targets, 0))).numpy()
    assert scores is not None
    np.testing.assert_allclose(scores, np.where(targets < 0, 0.0, wanted), atol=1e-4)


def test_a_prompt_of_one_token_has_nothing_to_score(served: Served) -> None:
    (result,) = served.sample(
        request(
            [7],
            max_tokens=1,
            ask={"prompt_logprobs": True, "prompt_alt_tokens_k": 2, "targets": Targets(np.zeros((0, 2), int), False)},
        )
    )

    assert result.prompt_logprobs is not None and np.isnan(result.prompt_logprobs).tolist() == [True]
    assert result.prompt_alt_tokens is not None and result.prompt_alt_tokens.tokens.shape == (0, 2)
    assert result.target_prompt_logprobs is not None and result.target_prompt_logprobs.shape == (0, 2)


def test_what_nobody_asked_is_not_answered(served: Served) -> None:
    result = ask(served)

    answers = (result.prompt_logprobs, result.topk_prompt_logprobs, result.target_prompt_logprobs)
    assert (*answers, result.prompt_alt_tokens, result.sequences[0].topk) == (None,) * 5
