from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from chockstone.sampling.model import SampledModel, find_eos_tokens
from support.sampling.making import (
    EOS,
    TOKENIZER,
    Served,
    _seeded,
    _sizes,
    llama,
    logprobs_of,
    qwen3,
    random_prompt,
    request,
)


def network_of(served: Served) -> str:
    return type(served.sampled.network).__name__


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more}}


def qwen2() -> PreTrainedModel:
    return _seeded(Qwen2ForCausalLM, Qwen2Config(**_sizes(num_key_value_heads=2)))


def mistral(window: int | None) -> PreTrainedModel:
    return _seeded(MistralForCausalLM, MistralConfig(**_sizes(num_key_value_heads=2, sliding_window=window)))


def gemma() -> PreTrainedModel:
    return _seeded(GemmaForCausalLM, GemmaConfig(**_sizes(num_key_value_heads=2, head_dim=8)))


def gemma2() -> PreTrainedModel:
    config = Gemma2Config(**_sizes(num_key_value_heads=2, head_dim=8, sliding_window=16))
    return _seeded(Gemma2ForCausalLM, config)


def gpt2() -> PreTrainedModel:
    sizes = _sizes(n_positions=1024)
    sizes.pop("max_position_embeddings")
    return _seeded(GPT2LMHeadModel, GPT2Config(**sizes))


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("model", "network"),
    [
        pytest.param(qwen2, "FusedLlama", id="qwen2: biases on some"),
        pytest.param(lambda: mistral(None), "FusedLlama", id="mistral"),
        pytest.param(lambda: mistral(16), "GenericNetwork", id="mistral: a sliding window"),
        pytest.param(lambda: llama(**rope("linear")), "FusedLlama", id="rope: linear"),
        pytest.param(lambda: llama(**rope("llama3", **LLAMA3)), "FusedLlama", id="rope: llama3"),
        pytest.param(lambda: llama(**rope("yarn", original_max_position_embeddings=64)), "FusedLlama", id="rope: yarn"),
        pytest.param(lambda: llama(**rope("dynamic")), "GenericNetwork", id="rope: by length"),
        pytest.param(gemma, "GenericNetwork", id="gemma: the same names, other numbers"),
        pytest.param(gemma2, "GenericNetwork", id="gemma2: windows and caps"),
        pytest.param(gpt2, "GenericNetwork", id="gpt2: no linear layers"),
    ],
)
def test_architectures_give_the_numbers_of_their_own_forward(model: Any, network: str) -> None:
    served = Served(model(), max_context=1000)
    assert network_of(served) == network
    prompt = random_prompt(70)

    (result,) = served.sample(request(prompt, 2, max_tokens=25, ask={"prompt_logprobs": True}))

    assert result.prompt_logprobs is not None
    for sequence in result.sequences:
        tokens = [*prompt, *sequence.tokens.tolist()]
        expected = logprobs_of(served.model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        np.testing.assert_allclose(result.prompt_logprobs[1:], expected[:69], atol=1e-4)
        np.testing.assert_allclose(sequence.logprobs, expected[69:], atol=1e-4)


class Wrapped(nn.Module):
    """A linear layer as training wraps it: the same weights, and a switch for its own adapter."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.active = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("architecture", [qwen3, llama, gemma])
def test_linear_layers_may_be_wrapped(architecture: Any) -> None:
    plain, model = Served(architecture()), architecture()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], Wrapped(module))
    wrapped, adapter = Served(model), plain.adapter(1)

    (expected,) = plain.sample(request(samples=3), adapter=adapter)
    (result,) = wrapped.sample(request(samples=3), adapter=adapter)

    assert network_of(wrapped) == network_of(plain)
    for ours, theirs in zip(result.sequences, expected.sequences, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()


def test_eos_is_whatever_any_of_the_three_say() -> None:
    model = qwen3()
    model.generation_config.eos_token_id = [5, 6]  # type: ignore[union-attr]
    model.config.eos_token_id = None

    assert find_eos_tokens(model, TOKENIZER) == {5, 6, EOS}
    assert SampledModel(model, TOKENIZER, max_context=64).eos_tokens == {5, 6, EOS}
