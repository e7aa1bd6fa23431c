from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.sampling.token_choice import batch_rules, choose_tokens, find_topk
from chockstone.wire.codecs.samples import SamplingParams

CPU = torch.device("cpu")
GRID = 4000


def pick_all(logits: list[float], params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logprobs at GRID evenly spaced random numbers: the exact distribution, to 1 / GRID."""
    rows = torch.tensor([logits]).expand(GRID, -1)
    rules = batch_rules([params] * GRID, vocabulary=len(logits), device=CPU)
    return choose_tokens(rows, rules, [(i + 0.5) / GRID for i in range(GRID)])


def expected_distribution(logits: list[float], params: SamplingParams) -> np.ndarray:
    scaled = np.array(logits, np.float32).astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    keep = order[: params.top_k] if params.top_k > 0 else order
    up_to = np.cumsum(probs[keep]) / probs[keep].sum()
    keep = keep[: 1 + int(np.sum(up_to < params.top_p - 1e-9))]
    kept = np.zeros_like(probs)
    kept[keep] = probs[keep]
    return kept / kept.sum()


distinct_logits = st.lists(st.integers(-40, 40), min_size=1, max_size=150, unique=True).map(
    lambda whole: [value / 7 for value in whole]
)


@settings(max_examples=60, deadline=None)
@given(
    logits=distinct_logits,
    temperature=st.floats(0.2, 3.0),
    top_k=st.sampled_from([-1, 1, 2, 5, 70, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
)
def test_tokens_come_with_the_probabilities_that_the_rules_leave(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)

    tokens, logprobs = pick_all(logits, params)

    expected = expected_distribution(logits, params)
    frequencies = np.bincount(tokens, minlength=len(logits)) / GRID
    assert np.abs(frequencies - expected).max() < 2 / GRID
    full = (torch.tensor(logits) / temperature).log_softmax(-1).numpy()
    np.testing.assert_allclose(logprobs, full[tokens], atol=2e-5)


def test_a_nucleus_wider_than_the_candidates_is_still_whole() -> None:
    logits = (torch.arange(5000) / 1e6).tolist()

    tokens, _ = pick_all(logits, SamplingParams(top_p=0.5))

    assert tokens.min() >= 2490
    assert len(set(tokens.tolist())) > 2300


def test_every_row_follows_its_own_rules() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(5, -1)
    params = [
        SamplingParams(temperature=0),
        SamplingParams(top_k=1),
        SamplingParams(temperature=0.01),
        SamplingParams(top_p=0.01),
        SamplingParams(),
    ]

    tokens, logprobs = choose_tokens(logits, batch_rules(params, vocabulary=4, device=CPU), [0.001] * 5)

    assert tokens.tolist() == [3, 3, 3, 3, 0]
    plain = logits[0].log_softmax(-1).tolist()
    assert logprobs.tolist() == pytest.approx([plain[3], plain[3], 0.0, plain[3], plain[0]], abs=1e-6)


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(1, 200)
    logits[0, [70, 150]] = 5

    tokens, _ = choose_tokens(logits, batch_rules([SamplingParams(temperature=0)], vocabulary=200, device=CPU), [0.9])

    assert tokens.tolist() == [70]


@pytest.mark.parametrize("uniform", [0.0, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.99)])
def test_a_token_without_probability_is_never_picked(uniform: float, params: SamplingParams) -> None:
    logits = torch.full((1, 100), -torch.inf)
    logits[0, [40, 41]] = 1.0

    tokens, logprobs = choose_tokens(logits, batch_rules([params], vocabulary=100, device=CPU), [uniform])

    assert tokens[0] in (40, 41)
    assert logprobs[0] == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_poisoned_row_is_nan_and_alone(poison: float, temperature: float) -> None:
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=temperature), SamplingParams(top_k=3), SamplingParams(), SamplingParams()]
    rules = batch_rules(params, vocabulary=70, device=CPU)
    before, _ = choose_tokens(logits, rules, [0.3, 0.5, 0.7, 0.9])
    logits[2, 5] = poison

    tokens, logprobs = choose_tokens(logits, rules, [0.3, 0.5, 0.7, 0.9])

    assert tokens[[0, 1, 3]].tolist() == before[[0, 1, 3]].tolist()
    assert np.isnan(logprobs).tolist() == [False, False, True, False]
    assert 0 <= tokens[2] < 70


def test_the_most_likely_tokens_come_best_first() -> None:
    tokens, logprobs = find_topk(torch.tensor([[1.0, 3.0, 2.0]]), 0.5, 2)

    assert tokens[0].tolist() == [1, 2]
    assert logprobs[0].tolist() == pytest.approx((torch.tensor([6.0, 4.0, 2.0]).log_softmax(0))[:2].tolist())
