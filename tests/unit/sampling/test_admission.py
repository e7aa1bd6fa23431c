from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.samples import Targets
from chockstone.wire.failures import BadRequest
from support.sampling.making import CONTEXT, VOCABULARY, Served, request


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1, 2, VOCABULARY]}, f"prompt token 2 is {VOCABULARY}, outside this model's vocabulary"),
        ({"prompt": [1, -5, 2]}, "prompt token 1 is -5"),
        ({"samples": 0}, "num_samples=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"prompt": [1] * 4000, "max_tokens": 97}, f"does not fit this model's context of {CONTEXT}"),
        ({"prompt": [1] * 4096, "max_tokens": None}, f"does not fit this model's context of {CONTEXT}"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -2}, "top_k=-2"),
        ({"stop_strings": ("a", "")}, "empty stop string"),
        ({"stop_tokens": (VOCABULARY,)}, f"stop token {VOCABULARY}"),
        ({"ask": {"topk_prompt_logprobs": VOCABULARY + 1}}, "topk_prompt_logprobs=301 is more"),
        ({"ask": {"topk_sample_logprobs": -1}}, "topk_sample_logprobs=-1 is negative"),
        ({"ask": {"prompt_logprobs_last_n": -1}}, "prompt_logprobs_last_n=-1 is negative"),
        ({"prompt": [1, 2, 3], "ask": {"targets": Targets(np.zeros((3, 2), int), False)}}, "needs (2, K)"),
        ({"prompt": [1, 2], "ask": {"targets": Targets(np.full((1, 2), 300), False)}}, "-1 skips a cell"),
    ],
)
def test_what_the_caller_must_change_is_refused_at_once(fused: Served, changes: dict[str, Any], says: str) -> None:
    sampler = Sampler()

    with pytest.raises(BadRequest) as caught:
        sampler.add("a", fused.sampled, None, request(**changes), seed=1)

    assert says in str(caught.value)
    assert not sampler.has_work()


def test_a_request_may_fill_the_context_to_the_last_position(fused: Served) -> None:
    (result,) = fused.sample(request([1] * (CONTEXT - 3), max_tokens=3))

    assert len(result.sequences[0].tokens) == 3


def test_a_full_context_can_be_scored_and_one_more_token_cannot(fused: Served) -> None:
    scored = {"max_tokens": 1, "ask": {"prompt_logprobs": True}}  # what the SDK's compute_logprobs sends

    (result,) = fused.sample(request([1] * CONTEXT, **scored))

    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == CONTEXT
    assert np.isfinite(result.prompt_logprobs[1:]).all()
    with pytest.raises(BadRequest, match="does not fit"):
        Sampler().add("a", fused.sampled, None, request([1] * (CONTEXT + 1), **scored), seed=1)
