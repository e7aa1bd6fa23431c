"""Tiny random language models, datums for them, and the plain PyTorch that trained runs are held against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from chockstone.backends.run_spec import RunSpec
from chockstone.backends.training.base_model import BaseModel, prepare_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Array, Datum, Pass, PassResult

VOCABULARY = 97
T = TypeVar("T")
Inputs = Mapping[str, Array]
TorchLoss = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]


def tiny_model(
    architecture: str = "qwen3", *, tied: bool = False, dtype: torch.dtype = torch.float32, layers: int = 2
) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        if architecture == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**sizes)).eval().to(dtype)
        return LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True)).eval().to(dtype)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1")


def tiny_base(architecture: str = "qwen3", **changes: Any) -> BaseModel:
    return prepare_base_model("tiny", Path("tiny"), tiny_model(architecture, **changes), tiny_tokenizer())


def lora_run(base: BaseModel, *, rank: int = 4, seed: int = 0, **changes: Any) -> TrainedRun:
    """A run whose matrices are all random, as if it had been trained."""
    run = TrainedRun(base, RunSpec(rank=rank, seed=seed, **changes))
    state = run.state()
    generator = torch.Generator().manual_seed(seed)
    state["weights"] = {
        name: torch.empty(weight.shape).normal_(0, 0.1, generator=generator)
        for name, weight in state["weights"].items()
    }
    run.load(state, with_optimizer=False)
    return run


def datum(positions: int, *, targets: int | None = None, seed: int = 0, inputs: tuple[str, ...] = ()) -> Datum:
    """Random tokens and targets ([N], or [N, K]) with random values for the named inputs."""
    rng = np.random.default_rng(seed)
    shape = (positions,) if targets is None else (positions, targets)
    tokens = rng.integers(0, VOCABULARY, positions).astype(np.int32)
    values: dict[str, Array] = {"target_tokens": rng.integers(0, VOCABULARY, shape)}
    for name in inputs:
        values[name] = rng.normal(size=shape).astype(np.float32)
    if "logprobs" in values:
        values["logprobs"] = values["logprobs"] * np.float32(0.3) - np.float32(4.5)
    return Datum(tokens, values)


def begin_alike(data: Sequence[Datum], positions: int) -> list[Datum]:
    """The same datums with the first tokens and targets of the first one."""
    first = data[0]
    alike: list[Datum] = []
    for one in data:
        tokens, targets = one.tokens.copy(), one.inputs["target_tokens"].copy()
        tokens[:positions], targets[:positions] = first.tokens[:positions], first.inputs["target_tokens"][:positions]
        alike.append(Datum(tokens, {**one.inputs, "target_tokens": targets}))
    return alike


def request(*data: Datum, loss: str = "cross_entropy", forward_only: bool = False, **options: float | str) -> Pass:
    return Pass("run", 1, data, loss, options, forward_only)


def finish(generator: Generator[None, None, T]) -> T:
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def apply(
    run: TrainedRun, *data: Datum, loss: str = "cross_entropy", budget: int | None = None, **options: Any
) -> PassResult:
    return finish(run.apply(request(*data, loss=loss, **options), {}, tokens_per_micro_batch=budget))


def gradient(run: TrainedRun) -> dict[str, torch.Tensor]:
    """The accumulated gradient by name."""
    state = run.state()
    sizes = [weight.numel() for weight in state["weights"].values()]
    pieces = state["gradient"].split(sizes)
    return {name: g.view(w.shape) for (name, w), g in zip(state["weights"].items(), pieces, strict=True)}


class Reference:
    """The same model in plain PyTorch: a copy of its own, LoRA by hooks, one datum at a time, whole logits."""

    def __init__(self, model: PreTrainedModel, run: TrainedRun) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        weights = run.state()["weights"]
        self.leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        if run.spec.is_full:
            self.model.requires_grad_(True)
            self.leaves = dict(self.model.named_parameters())
            return
        for name, module in self.model.named_modules():
            if f"{name}.lora_A" in self.leaves:
                module.register_forward_hook(self._hook(name, 32 / run.spec.rank))

    def _hook(self, name: str, scale: float) -> Callable[..., torch.Tensor]:
        down, up = self.leaves[f"{name}.lora_A"], self.leaves[f"{name}.lora_B"]
        return lambda _, args, output: output + scale * (args[0] @ down.T @ up.T)

    def logprobs(self, datum: Datum) -> torch.Tensor:
        logits = self.model(torch.from_numpy(datum.tokens.astype(np.int64))[None]).logits[0].float()
        targets = torch.from_numpy(datum.inputs["target_tokens"])
        logprobs = torch.log_softmax(logits, -1)
        return logprobs.gather(1, targets.view(len(targets), -1)).view(targets.shape)

    def backward(self, data: tuple[Datum, ...], loss: TorchLoss) -> tuple[float, dict[str, torch.Tensor]]:
        """The summed loss and every gradient."""
        total = torch.zeros(())
        for datum in data:
            inputs = {name: torch.from_numpy(np.array(value)) for name, value in datum.inputs.items()}
            total = total + loss(self.logprobs(datum), inputs).sum()
        grads = torch.autograd.grad(total, list(self.leaves.values()), allow_unused=True)
        filled = zip(self.leaves.items(), grads, strict=True)
        return float(total.detach()), {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in filled}


def assert_same_gradient(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        scale = max(1.0, grad.abs().max().item())
        torch.testing.assert_close(actual[name], grad, rtol=1e-5, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")
