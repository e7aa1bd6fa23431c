"""Experts: LoRA steps on a mixture of experts, beside PEFT on the fused weights (``target_parameters``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.models.memory import PEAK
from benchmarks.models.mixes import Sequence, uniform
from benchmarks.models.setup import LOSS_TOLERANCE, Setup, count_tokens
from benchmarks.models.training import OURS, PEFT, RATE

_VOCABULARY: Final = 4096
_LENGTH: Final = 512  # tokens of a sequence
_ROUNDS: Final = 3


def measure_experts(context: Context, setup: Setup) -> Rows:
    layers, experts, width = (2, 8, 64) if context.quick else (8, 32, 384)
    directory = context.directory / "models" / "experts"
    count = _make_model(directory, layers=layers, experts=experts, width=width)
    tokens = setup.scale.step_tokens
    context.describe(
        f"Qwen3-MoE of {count / 1e6:.0f}M parameters: {layers} layers, {experts} experts, 4 of them for each token; "
        f"rank 32 for each expert, {tokens:,} tokens a step"
    )
    batch = uniform(max(1, tokens // _LENGTH), _LENGTH, vocab_size=_VOCABULARY, seed=5)
    losses: dict[str, float] = {}

    def turn(trainer: RemoteObject, name: str) -> Callable[[], Metrics]:
        return lambda: _step(trainer, batch, name, losses)

    options = {"directory": directory, "threads": setup.threads}
    with (
        RemoteObject("benchmarks.models.trainers", "OwnTrainer", **options) as own,
        RemoteObject("benchmarks.models.trainers", "PeftTrainer", experts=True, **options) as peft,
    ):
        rows = context.run_rounds({OURS: turn(own, OURS), PEFT: turn(peft, PEFT)}, repeats=_ROUNDS)
    if len(losses) == len(rows) and abs(losses[OURS] / losses[PEFT] - 1) > LOSS_TOLERANCE:
        rows[OURS].failure = f"not the same work: first losses {losses[OURS]} and {losses[PEFT]}"
    return rows


def _step(trainer: RemoteObject, batch: list[Sequence], name: str, losses: dict[str, float]) -> Metrics:
    answer = trainer.call("step", sequences=batch)
    losses.setdefault(name, answer["loss"])
    return {RATE: count_tokens(batch) / answer["seconds"], PEAK: answer[PEAK], "cpu_seconds": answer["cpu_seconds"]}


def _make_model(directory: Path, *, layers: int, experts: int, width: int) -> int:
    """Returns the number of parameters."""
    config = Qwen3MoeConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=width,
        moe_intermediate_size=width // 2,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        num_experts=experts,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        max_position_embeddings=2 * _LENGTH,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(directory)
    words = {f"w{number}": number for number in range(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
