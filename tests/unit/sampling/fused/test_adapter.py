from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.sampling.sampler import Sampler
from chockstone.wire.failures import Failure
from support.sampling.making import (
    Served,
    finish,
    logprobs_of,
    merged,
    random_prompt,
    request,
    result_of,
)


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
def test_an_adapter_gives_the_logprobs_of_the_merged_model(
    served: Served, merge_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chockstone.sampling.fused.adapter.MERGE_BYTES", merge_bytes)
    adapter, prompt = served.adapter(4), random_prompt(30)
    model = merged(served.model, adapter)

    (result,) = served.sample(request(prompt, 2, ask={"prompt_logprobs": True}), adapter=adapter)

    assert result.prompt_logprobs is not None
    for sequence in result.sequences:
        tokens = [*prompt, *sequence.tokens.tolist()]
        expected = logprobs_of(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        np.testing.assert_allclose(result.prompt_logprobs[1:], expected[:29], atol=1e-4)
        np.testing.assert_allclose(sequence.logprobs, expected[29:], atol=1e-4)
    assert not np.allclose(logprobs_of(model, prompt), logprobs_of(served.model, prompt), atol=0.1)


def test_an_adapter_that_is_not_finite_or_not_of_this_model_fails_its_request(served: Served) -> None:
    broken, foreign = served.adapter(1), served.adapter(2)
    name = next(iter(broken.layers))
    broken.layers[name].up[0, 0] = torch.nan
    foreign.layers["model.vision.proj"] = foreign.layers[name]  # type: ignore[index]
    sampler = Sampler()

    sampler.add("broken", served.sampled, broken, request(), seed=1)
    sampler.add("foreign", served.sampled, foreign, request(), seed=1)
    sampler.add("good", served.sampled, None, request(), seed=1)
    outcomes = finish(sampler)

    assert outcomes["broken"] == Failure(
        f"the adapter's weights for {name!r} hold NaN or infinity; go back to a checkpoint from before", "server"
    )
    assert isinstance(outcomes["foreign"], Failure) and "'model.vision.proj'" in outcomes["foreign"].error
    result_of(outcomes["good"])
