"""Tiny random models, a byte-level tokenizer, adapters, and what the library itself makes of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from chockstone.sampling.adapter import Adapter, LowRank
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.samples import SampleRequest, SampleResult, SamplingParams
from chockstone.wire.failures import Failure

VOCABULARY = 300  # more than the tokenizer's, as real models have
EOS = 256
CONTEXT = 4096


def _seeded(make: Any, config: Any, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = make(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name and parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.normal_(std=0.1)
    return model.to(dtype).eval()


def _sizes(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": None,
    } | changes


def qwen3(dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    config = Qwen3Config(**_sizes(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, **changes))
    return _seeded(Qwen3ForCausalLM, config, dtype)


def llama(**changes: Any) -> PreTrainedModel:
    biases = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    return _seeded(LlamaForCausalLM, LlamaConfig(**_sizes(num_key_value_heads=1, **biases, **changes)))


def gpt_neox() -> PreTrainedModel:
    return _seeded(GPTNeoXForCausalLM, GPTNeoXConfig(**_sizes()))


def make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    assert wrapped.eos_token_id == EOS
    return wrapped


TOKENIZER = make_tokenizer()


class Served:
    """A model, ready to be sampled from, and the questions tests ask of it."""

    def __init__(self, model: PreTrainedModel, *, max_context: int = CONTEXT, packable_bytes: int = 0) -> None:
        self.model = model
        self.sampled = SampledModel(model, TOKENIZER, max_context=max_context, packable_bytes=packable_bytes)

    def sample(self, *requests: SampleRequest, adapter: Adapter | None = None, seed: int = 5) -> list[SampleResult]:
        sampler = Sampler()
        for number, one in enumerate(requests):
            sampler.add(str(number), self.sampled, adapter, one, seed=seed)
        outcomes = finish(sampler)
        return [result_of(outcomes[str(number)]) for number in range(len(requests))]

    def adapter(self, seed: int, *, rank: int = 4, size: float = 0.3, but: Sequence[str] = ()) -> Adapter:
        random = torch.Generator().manual_seed(seed)
        layers = {}
        for name, module in self.model.named_modules():
            if isinstance(module, torch.nn.Linear) and not any(name.endswith(part) for part in but):
                down = torch.randn(rank, module.in_features, generator=random) * size
                layers[name] = LowRank(down, torch.randn(module.out_features, rank, generator=random) * size)
        return Adapter(layers, scale=0.5)


def merged(model: PreTrainedModel, adapter: Adapter | None) -> PreTrainedModel:
    """The model with the adapter inside its weights, an untied copy."""
    model = copy.deepcopy(model)
    if adapter is None:
        return model
    with torch.no_grad():
        for name, layer in adapter.layers.items():
            module: Any = model.get_submodule(name)
            module.weight = torch.nn.Parameter(module.weight + adapter.scale * layer.up @ layer.down)
    return model


def logprobs_of(model: PreTrainedModel, tokens: Sequence[int], *, temperature: float = 1.0) -> torch.Tensor:
    """[len(tokens), V]: row i is the distribution of the token after position i, by the library's own forward."""
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return (logits / temperature).log_softmax(-1)


def request(
    prompt: Sequence[int] | str = "hello there",
    samples: int = 1,
    *,
    max_tokens: int | None = 12,
    stops_at_eos: bool = False,
    ask: dict[str, Any] | None = None,
    **params: Any,
) -> SampleRequest:
    tokens = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    return SampleRequest(
        prompt=np.array(tokens, dtype=np.int32),
        num_samples=samples,
        params=SamplingParams(max_tokens=max_tokens, stops_at_eos=stops_at_eos, **params),
        **(ask or {}),
    )


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def finish(sampler: Sampler, *, steps: int = 100_000) -> dict[str, SampleResult | Failure]:
    outcomes: dict[str, SampleResult | Failure] = {}
    for _ in range(steps):
        if not sampler.has_work():
            return outcomes
        for finished in sampler.step():
            assert finished.key not in outcomes
            outcomes[finished.key] = finished.outcome
    raise AssertionError(f"still working after {steps} steps")


def result_of(outcome: SampleResult | Failure) -> SampleResult:
    assert isinstance(outcome, SampleResult), outcome
    return outcome


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


def mixed_requests() -> list[SampleRequest]:
    return [
        request(random_prompt(5, 1), 3, max_tokens=20),
        request(random_prompt(60, 2), 2, max_tokens=90, temperature=0.8),  # outgrows its bucket
        request(random_prompt(5, 3), 1, max_tokens=7, top_k=5),
        request(random_prompt(130, 4), 2, max_tokens=15, top_p=0.7),
        request(random_prompt(1, 5), 1, max_tokens=30, temperature=0),
        request(random_prompt(40, 6), 4, max_tokens=1),
        request(random_prompt(5, 7), 2, stops_at_eos=True, max_tokens=40, temperature=1.5),
    ]
