from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chockstone.sampling.vllm import fleet as fleet_module
from chockstone.wire.failures import ServerFailure
from support.vllm.making import fleet, request, sample
from support.vllm.stub import Stub, logprobs_after


async def test_the_prompt_is_scored_from_its_second_token_on(stub: Stub) -> None:
    async with fleet(stub) as servers:
        whole = await sample(servers, request((5, 6, 7, 8), prompt_logprobs=True, topk_prompt_logprobs=2))
        last = await sample(servers, request((5, 6, 7, 8), prompt_logprobs=True, prompt_logprobs_last_n=1))

    assert whole.prompt_logprobs is not None and whole.topk_prompt_logprobs is not None
    expected = [logprobs_after(5)[6], logprobs_after(6)[7], logprobs_after(7)[8]]
    np.testing.assert_allclose(whole.prompt_logprobs, [np.nan, *expected], rtol=1e-6)
    assert whole.topk_prompt_logprobs.tokens[1].tolist() == np.argsort(-logprobs_after(5))[:2].tolist()
    assert whole.topk_prompt_logprobs.logprobs[0].tolist() == [-99999.0, -99999.0]
    assert last.prompt_logprobs is not None
    np.testing.assert_allclose(last.prompt_logprobs, [np.nan, np.nan, np.nan, expected[2]], rtol=1e-6)
    assert whole.prompt_cache_hit_tokens == 2


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        ({"logprobs": None}, "TypeError"),
        ({"token_ids": []}, "0 tokens and"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "TypeError"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [-1.0, -1.0]}}, "1 tokens and 2 logprobs"),
        *(
            (
                {"token_ids": [1], "logprobs": {"token_logprobs": [value]}},
                "a log-probability that is not a finite number",
            )
            for value in ("nan", "-inf", -1e39)
        ),
        ({"token_ids": [1] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "9 tokens and 9 logprobs, where 8"),
        ({"token_ids": [50], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
        ({"token_ids": [2**40], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
        ({"token_ids": [1.5], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_asked_for_elsewhere(
    stub: Stub, other: Stub, monkeypatch: pytest.MonkeyPatch, nonsense: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(fleet_module, "_LARGE_TOKENS", 1)  # it is read in a thread
    async with fleet(stub, other) as servers:
        stub.nonsense = nonsense
        await sample(servers, request())
        other.nonsense = nonsense
        with pytest.raises(ServerFailure, match=f"does not answer as vLLM does: {message}"):
            await sample(servers, request())


async def test_a_score_of_a_prompt_that_is_no_number_is_refused(stub: Stub) -> None:
    async with fleet(stub) as servers:
        stub.nonsense = {"prompt_logprobs": [None, {"6": {"logprob": "nan"}}]}
        with pytest.raises(ServerFailure, match="a log-probability that is not a finite number"):
            await sample(servers, request((5, 6), prompt_logprobs=True))


async def test_a_sample_that_the_server_ended_early_is_asked_for_again(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, times = Stub._choice, iter([True])
    async with fleet(stub) as servers:
        monkeypatch.setattr(
            Stub, "_choice", lambda *given: whole(*given) | ({"finish_reason": "abort"} if next(times, False) else {})
        )

        result = await sample(servers, request())

    assert len(result.sequences) == 1
    assert len(stub.requests) == 2
