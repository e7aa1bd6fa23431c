"""Activation checkpointing: the same bits from less memory, where less memory is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from chockstone.backends.run_spec import ActivationCheckpointing, RunSpec
from chockstone.backends.training.activations import SHARE, Activations, _available_bytes, _group_bytes, free_memory
from chockstone.backends.training.base_model import BaseModel, prepare_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import PassResult
from support.backends.training import BATCH, bits
from support.tiny_models import VOCABULARY, apply, lora_run, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")


def make_base(mode: ActivationCheckpointing, architecture: str = "qwen3", **changes: Any) -> BaseModel:
    model = tiny_model(architecture, **changes)
    return prepare_base_model("tiny", Path("tiny"), model, tiny_tokenizer(), activation_checkpointing=mode)


def make_run(base: BaseModel, rank: int) -> TrainedRun:
    return lora_run(base, rank=rank) if rank else TrainedRun(base, RunSpec(rank=0, seed=0))


def count_kept(run: TrainedRun) -> int:
    """Bytes that the forward pass keeps, each piece of memory once."""
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens_BT = torch.arange(4 * 60).view(4, 60) % VOCABULARY
    with run._weights.applied(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = run.base.trained_states(tokens_BT)
    assert hidden.requires_grad
    parameters = {p.untyped_storage().data_ptr() for p in (*run.base.model.parameters(), run._weights.parameters.flat)}
    return sum(size for address, size in kept.items() if address not in parameters)


def outcome(result: PassResult, run: TrainedRun) -> Any:
    return result.metrics, [array.tobytes() for array in result.logprobs], bits(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_losses_and_gradients_have_the_same_bits(architecture: str, rank: int, dtype: torch.dtype) -> None:
    kept, recomputed = (make_run(make_base(mode, architecture, dtype=dtype), rank) for mode in ("off", "on"))

    expected, found = (outcome(apply(run, *BATCH, budget=40), run) for run in (kept, recomputed))

    assert found == expected


def test_a_layer_keeps_its_input_only() -> None:
    kept, recomputed = (count_kept(make_run(make_base(mode), 4)) for mode in ("off", "on"))

    assert recomputed < kept / 3


def test_a_model_of_another_structure_keeps_less_too() -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)

    assert len(Activations(model)._layers) == 4


def test_a_copy_of_the_model_has_layers_of_its_own() -> None:
    run = make_run(make_base("on"), 0)
    copied = run.full_copy().model
    before = copied(input_ids=torch.arange(9)[None]).logits

    with torch.no_grad():
        run._weights.parameters.flat.zero_()
        for parameter in run.base.model.parameters():
            parameter.zero_()

    assert torch.equal(copied(input_ids=torch.arange(9)[None]).logits, before)


def test_auto_recomputes_what_would_take_half_of_the_free_memory() -> None:
    run = make_run(make_base("off"), 4)
    needed = count_kept(run)
    decisions = {}

    for share in (1.2, 0.8):
        base = make_base("auto")
        free_bytes = int(needed / SHARE * share)
        object.__setattr__(base, "activations", Activations(base.model, free_bytes=lambda _, free=free_bytes: free))
        decisions[share] = count_kept(make_run(base, 4)) < needed / 3

    assert decisions == {1.2: False, 0.8: True}


def test_what_a_model_keeps_is_predicted_from_short_sequences() -> None:
    run = make_run(make_base("off"), 4)

    def measured(tokens: int) -> torch.Tensor:
        return run.base.hidden_states(torch.zeros(1, tokens, dtype=torch.int64))

    with run._weights.applied():
        predicted = run.base.activations.kept_bytes(measured).total(4, 60)

    assert predicted == pytest.approx(count_kept(run), rel=0.05)


def test_attention_that_keeps_its_scores_is_counted_by_pairs() -> None:
    model = tiny_model()
    model.set_attn_implementation("eager")
    run = make_run(prepare_base_model("tiny", Path("tiny"), model, tiny_tokenizer()), 4)

    with run._weights.applied():
        kept = run.base.activations.kept_bytes(
            lambda tokens: run.base.hidden_states(torch.zeros(1, tokens, dtype=torch.int64))
        )

    assert kept.per_pair >= 2 * 4 * 4  # layers, heads, bytes


def test_without_gradients_nothing_is_measured_or_kept() -> None:
    activations = Activations(tiny_model(), free_bytes=lambda _: 0)

    def measured(_tokens: int) -> None:
        raise AssertionError

    with torch.no_grad(), activations.kept_or_recomputed(1, 10_000, device=CPU, measured=measured):
        assert not any(layer.recomputes for layer in activations._layers)


def test_the_flag_ends_with_the_micro_batch() -> None:
    activations = Activations(tiny_model(), mode="on")

    with pytest.raises(KeyError), activations.kept_or_recomputed(1, 1, device=CPU, measured=lambda _: None):
        assert all(layer.recomputes for layer in activations._layers)
        raise KeyError

    assert not any(layer.recomputes for layer in activations._layers)


@pytest.mark.parametrize(
    ("mode", "free_share", "kept"),
    [("on", 99.0, 2), ("on", 0.0, 0), ("auto", 1.2, 12), ("auto", 0.8, 2), ("auto", 0.2, 2), ("auto", 0.1, 0)],
)
def test_the_last_sixth_of_the_layers_keeps_its_activations_where_memory_allows(
    mode: ActivationCheckpointing, free_share: float, kept: int
) -> None:
    """``free_share``: what may be used of the free memory, of what all layers keep."""
    base = make_base("off", layers=12)
    run = make_run(base, 4)
    free_bytes = int(count_kept(run) * free_share / SHARE)
    activations = Activations(base.model, mode=mode, free_bytes=lambda _: free_bytes)

    def measured(tokens: int) -> torch.Tensor:
        return base.hidden_states(torch.zeros(1, tokens, dtype=torch.int64))

    with run._weights.applied(), activations.kept_or_recomputed(4, 60, device=CPU, measured=measured):
        recomputes = [layer.recomputes for layer in activations._layers]

    assert recomputes == [True] * (12 - kept) + [False] * kept
    assert activations._layers == list(base.model.model.layers)
    assert activations.recompute_more() is bool(kept)


def test_free_memory_is_that_of_the_machine_and_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:     60 kB\n")
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")

    assert _available_bytes(tmp_path / "meminfo") == 60 * 1024
    assert _group_bytes(tmp_path) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert _group_bytes(tmp_path) is None
    assert _available_bytes(tmp_path / "absent") is None
    assert (free_memory(CPU) or 0) > 0


def test_the_last_product_of_a_layer_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_base("on"), 4)
    names = {layer.weight.data_ptr(): name for name, layer in run.base.layers.items()}
    computed: list[str] = []
    linear = functional.linear

    def count(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        computed.append(names[weight.data_ptr()])
        return linear(x, weight, bias)

    monkeypatch.setattr(functional, "linear", count)
    apply(run, BATCH[0])

    assert computed.count("model.layers.0.mlp.up_proj") == 2
    assert computed.count("model.layers.0.mlp.down_proj") == 1
