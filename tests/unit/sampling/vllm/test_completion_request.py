from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chockstone.sampling.vllm import completion_request
from chockstone.sampling.vllm.completion_request import Ability, can_answer, make_completion, split_samples
from chockstone.wire.codecs.samples import Constraint, Targets
from support.vllm.making import FACTS, request
from support.vllm.stub import EOS, VOCABULARY

RAW, TEMPERED = Ability(64, is_tempered=False, has_head=False), Ability(64, is_tempered=True, has_head=False)


@pytest.mark.parametrize(
    ("fields", "by_raw", "by_tempered"),
    [
        ({}, True, True),
        ({"temperature": 0.0}, True, True),
        ({"temperature": 0.0, "top_p": 0.5}, True, True),
        ({"temperature": 0.7}, False, True),
        ({"top_p": 0.9}, True, False),
        ({"top_k": 5}, True, False),
        ({"top_k": VOCABULARY}, True, True),
        ({"temperature": 0.7, "top_p": 0.9}, False, False),
        ({"temperature": 0.001}, False, False),
        ({"topk_sample_logprobs": 20, "topk_prompt_logprobs": 20}, True, True),
        ({"topk_sample_logprobs": 21}, False, False),
        ({"topk_prompt_logprobs": 21}, False, False),
        ({"prompt_alt_tokens_k": 1}, False, False),
        ({"constraint": Constraint("{}")}, False, False),
        ({"targets": Targets(np.zeros((2, 1), np.int64), is_sparse=False)}, False, False),
        ({"prompt": (VOCABULARY,)}, False, False),
        ({"prompt": (-1,)}, False, False),
        ({"prompt": ()}, False, False),
        ({"stop_strings": ("",)}, False, False),
        ({"stop_tokens": (VOCABULARY,)}, False, False),
        ({"max_tokens": 61}, True, True),
        ({"max_tokens": 62}, False, False),
        ({"max_tokens": None}, True, True),
        ({"max_tokens": None, "prompt": (1,) * 64}, False, False),
    ],
)
def test_vllm_is_asked_only_for_what_it_gives_exactly(fields: dict[str, Any], by_raw: bool, by_tempered: bool) -> None:
    asked = request(**fields)

    can = [can_answer(asked, FACTS, ability, has_head=False) for ability in (RAW, TEMPERED)]

    assert can == [by_raw, by_tempered]


@pytest.mark.parametrize(
    ("fields", "of_server", "of_adapter", "can"),
    [
        ({}, True, True, True),
        ({}, True, False, True),
        ({}, False, True, False),
        ({"prompt_logprobs": True}, False, False, True),
        ({"prompt_logprobs": True}, True, False, False),
        ({"topk_prompt_logprobs": 1}, True, False, False),
        ({"prompt_logprobs": True}, False, True, False),
    ],
)
def test_a_server_adapts_output_layers_or_scores_prompts(
    fields: dict[str, Any], of_server: bool, of_adapter: bool, can: bool
) -> None:
    ability = Ability(64, is_tempered=False, has_head=of_server)

    assert can_answer(request(**fields), FACTS, ability, has_head=of_adapter) == can


def make(*, seed: int = 0, **fields: Any) -> dict[str, Any]:
    return make_completion(request(**fields), FACTS, RAW, range(1), model="tiny", seed=seed)


def test_nothing_is_left_to_the_servers_defaults() -> None:
    body = make(max_tokens=None)

    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "temperature": 1.0}
    assert {name: body[name] for name in neutral} == neutral
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert (body["max_tokens"], body["ignore_eos"], body["skip_special_tokens"]) == (61, True, False)


@pytest.mark.parametrize(
    ("fields", "tokens", "strings"),
    [
        ({}, [EOS], []),
        ({"stops_at_eos": False}, [], []),
        ({"stop_tokens": (9, 4)}, sorted([4, 9, EOS]), []),
        ({"stop_tokens": (9, EOS)}, sorted([9, EOS]), []),
        ({"stop_strings": ("a\n",)}, [EOS], ["a\n"]),
    ],
)
def test_stops_are_the_callers_and_the_ends_of_sequence(
    fields: dict[str, Any], tokens: list[int], strings: list[str]
) -> None:
    body = make(**fields)

    assert (body["stop_token_ids"], body["stop"]) == (tokens, strings)


def test_seeds_of_neighbours_lead_to_different_samples() -> None:
    seeds = [make(seed=seed)["seed"] for seed in (1, 2)]

    assert abs(seeds[1] - seeds[0]) > 4096
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_many_samples_are_asked_for_in_parts_that_continue_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_request, "_ANSWER_CELLS", 80)
    asked = request(samples=25, prompt_logprobs=True)

    parts = split_samples(asked, FACTS, RAW)

    assert parts == [range(10), range(10, 20), range(20, 25)]
    bodies = [make_completion(asked, FACTS, RAW, part, model="tiny", seed=4) for part in parts]
    assert [body["seed"] - bodies[0]["seed"] for body in bodies] == [0, 10, 20]
    assert ["prompt_logprobs" in body for body in bodies] == [True, False, False]


def test_the_most_likely_tokens_are_asked_for_once() -> None:
    assert split_samples(request(samples=9, temperature=0.0), FACTS, RAW) == [range(1)]
