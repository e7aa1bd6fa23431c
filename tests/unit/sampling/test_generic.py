from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from support.sampling.making import (
    Served,
    _seeded,
    _sizes,
    llama,
    logprobs_of,
    random_prompt,
    request,
)


def mistral(window: int | None) -> PreTrainedModel:
    return _seeded(MistralForCausalLM, MistralConfig(**_sizes(num_key_value_heads=2, sliding_window=window)))


@pytest.mark.parametrize("window", [16, 600])
def test_a_long_prompt_passes_a_sliding_window_in_chunks(window: int) -> None:
    served, prompt = Served(mistral(window)), random_prompt(1300)
    assert served.sampled.network.tokens_per_prefill < 1300

    (result,) = served.sample(request(prompt, max_tokens=1, ask={"prompt_logprobs": True}))

    expected = logprobs_of(served.model, prompt)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert result.prompt_logprobs is not None
    np.testing.assert_allclose(result.prompt_logprobs[1:], expected, atol=1e-4)


def test_training_goes_on_through_a_model_that_is_sampled() -> None:
    model, plain = llama(), llama()
    served = Served(model)
    model.train()
    served.sample(request())
    assert model.training

    grads = []
    for one in (model, plain):
        one.train()
        loss = one(torch.tensor([random_prompt(12)]), labels=torch.tensor([random_prompt(12)])).loss
        loss.backward()
        grads.append({name: parameter.grad for name, parameter in one.named_parameters()})

    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name])
