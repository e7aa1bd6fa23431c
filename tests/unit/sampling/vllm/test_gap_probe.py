from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chockstone.sampling.vllm.completion_answer import UnexpectedAnswer
from chockstone.sampling.vllm.completion_request import Ability, can_answer
from chockstone.sampling.vllm.gap_probe import NotScored, compare, drawn_text, probe_requests
from chockstone.wire.codecs.samples import SampledSequence
from support.vllm.making import FACTS, request

ABILITY = Ability(max_context=64, is_tempered=False, has_head=False)


def drawn(*logprobs: float) -> SampledSequence:
    return SampledSequence(np.arange(len(logprobs), dtype=np.int32), np.array(logprobs, np.float32), "length")


def test_the_probe_is_fixed_and_any_server_answers_it_exactly() -> None:
    first, again = probe_requests(FACTS, ABILITY), probe_requests(FACTS, ABILITY)

    assert [each.prompt.tolist() for each in first] == [each.prompt.tolist() for each in again]
    assert len({tuple(each.prompt.tolist()) for each in first}) == len({each.params.seed for each in first}) == 4
    assert {(len(each.prompt), each.params.max_tokens) for each in first} == {(16, 32)}
    assert not any(each.params.stops_at_eos or each.params.stop_tokens for each in first)
    for is_tempered in (False, True):
        for has_head in (False, True):
            ability = replace(ABILITY, is_tempered=is_tempered, has_head=has_head)
            assert all(can_answer(each, FACTS, ability, has_head=has_head) for each in first)


def test_prompts_avoid_the_end_of_the_vocabulary() -> None:
    highest = max(int(each.prompt.max()) for each in probe_requests(FACTS, ABILITY))

    assert 25 < highest < FACTS.vocabulary * 3 // 4


@pytest.mark.parametrize(("context", "lengths"), [(64, (16, 32)), (49, (16, 32)), (20, (9, 10)), (3, (1, 1))])
def test_a_short_context_has_a_short_probe_with_room_for_one_token_more(context: int, lengths: tuple[int, int]) -> None:
    one, *_ = probe_requests(FACTS, replace(ABILITY, max_context=context))

    assert (len(one.prompt), one.params.max_tokens) == lengths
    assert sum(lengths) < context


def test_a_context_without_room_for_a_probe_has_none() -> None:
    assert probe_requests(FACTS, replace(ABILITY, max_context=2)) == ()
    assert probe_requests(replace(FACTS, max_context=1), ABILITY) == ()


def test_the_gap_is_the_mean_and_the_largest_absolute_difference_of_the_drawn_tokens() -> None:
    exact = [np.array([-9, -1, -2], np.float32), np.array([-9, -9, -4], np.float32)]  # prompts of 2 and of 3 tokens

    mean, largest, tokens = compare([drawn(-1.5, -2), drawn(-3)], exact)

    assert (mean, largest, tokens) == (0.5, 1.0, 3)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 0.5])
def test_values_that_are_no_logprobs_are_not_compared(value: float) -> None:
    with pytest.raises(UnexpectedAnswer, match="no log-probabilities"):
        compare([drawn(-1, value)], [np.array([-1, -1], np.float32)])
    with pytest.raises(NotScored):
        compare([drawn(-1, -1)], [np.array([-1, value], np.float32)])


def test_too_few_exact_scores_are_not_compared() -> None:
    with pytest.raises(NotScored, match="for each token"):
        compare([drawn(-1, -1)], [np.array([-1], np.float32)])


def test_an_answer_that_ends_early_is_no_probe() -> None:
    asked = request((5, 6), max_tokens=2)

    assert drawn_text(asked, drawn(-1, -1)).tolist() == [5, 6, 0, 1]
    with pytest.raises(UnexpectedAnswer, match="1 tokens, where 2 were asked for"):
        drawn_text(asked, drawn(-1))
