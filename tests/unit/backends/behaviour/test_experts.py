"""Mixtures of experts: what is trained is what is sampled, exported, merged and restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from chockstone.backends.export.adapter_files import write_adapter
from chockstone.backends.export.merge import merge_archive
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.sampler_weights import read_weights
from chockstone.sampling.adapter import Adapter
from chockstone.sampling.fused.llama import FusedLlama
from chockstone.sampling.model import SampledModel
from chockstone.sampling.sampler import Sampler
from chockstone.wire.codecs.passes import Datum
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SamplingParams
from support.backends.saving import assert_same_logits, live_logits, logits_of, open_desk
from support.sampling.making import finish, result_of
from support.tiny_experts import ARCHITECTURES, experts_base, experts_directory, tiny_experts
from support.tiny_models import apply, datum, gradient, lora_run

FAMILIES = list(ARCHITECTURES)
IN_PEFT = ["qwen3_moe", "mixtral", "gpt_oss"]  # it drops shared experts of Qwen2-like models, see test_peft
NAMED = {"qwen3_moe": "mlp.experts.3.gate_proj", "mixtral": "block_sparse_moe.experts.3.w1"}


def sample(model: SampledModel, adapter: Adapter | None, request: SampleRequest) -> tuple[SampledSequence, ...]:
    sampler = Sampler()
    sampler.add("it", model, adapter, request, seed=1)
    return result_of(finish(sampler)["it"]).sequences


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_run_with_experts_trains_and_repeats_itself_bit_for_bit(architecture: str) -> None:
    results = []
    for _ in range(2):
        run = lora_run(experts_base(architecture))
        first = apply(run, datum(12), datum(7, seed=1))
        grads = gradient(run)
        run.optim_step(OptimStep.parse({"learning_rate": 1e-2}))
        second = apply(run, datum(12), datum(7, seed=1))
        results.append((first.metrics["loss:sum"], second.metrics["loss:sum"], grads, run.weights()))

    (before, after, grads, weights), again = results
    assert after < before and (before, after) == again[:2]
    assert any(value.dim() == 3 and bool(value.any()) for value in grads.values())
    assert all(torch.equal(value, again[2][name]) for name, value in grads.items())
    assert all(torch.equal(value, again[3][name]) for name, value in weights.items())


@pytest.mark.parametrize("architecture", FAMILIES)
def test_samples_of_a_run_have_the_log_probabilities_that_it_computes(architecture: str) -> None:
    run = lora_run(experts_base(architecture))
    sampled = SampledModel(run.base.model, run.base.tokenizer, max_context=64)
    prompt = np.arange(9, dtype=np.int32) * 5 % 97

    with_adapter, without = (
        sample(sampled, adapter, SampleRequest(prompt, 3, SamplingParams(max_tokens=12, stops_at_eos=False, seed=4)))
        for adapter in (run.adapter(), None)
    )

    for sequence in with_adapter:
        tokens = np.concatenate([prompt, sequence.tokens])
        targets = {"target_tokens": tokens[1:].astype(np.int64)}
        trained = apply(run, Datum(tokens[:-1], targets), forward_only=True).logprobs[0][len(prompt) - 1 :]
        np.testing.assert_allclose(sequence.logprobs, trained, atol=1e-4)
    assert not np.allclose(with_adapter[0].logprobs, without[0].logprobs, atol=1e-2)


@pytest.mark.parametrize(("architecture", "is_fused"), [("qwen3_moe", True), ("mixtral", True), ("gpt_oss", False)])
def test_samples_of_several_adapters_in_one_batch_have_their_own_experts(architecture: str, is_fused: bool) -> None:
    base = experts_base(architecture)
    runs = [lora_run(base, seed=seed) for seed in (1, 2)]
    sampled = SampledModel(base.model, base.tokenizer, max_context=64, records_routing=True)
    prompt = np.arange(9, dtype=np.int32) * 5 % 97
    request = SampleRequest(prompt, 2, SamplingParams(max_tokens=8, stops_at_eos=False, seed=4))
    sampler = Sampler()
    for number, run in enumerate(runs):
        sampler.add(str(number), sampled, run.adapter(), request, seed=1)
    outcomes = finish(sampler)

    assert isinstance(sampled.network, FusedLlama) == is_fused
    for number, run in enumerate(runs):
        for sequence in result_of(outcomes[str(number)]).sequences:
            tokens = np.concatenate([prompt, sequence.tokens])
            targets = {"target_tokens": tokens[1:].astype(np.int64)}
            trained = apply(run, Datum(tokens[:-1], targets), forward_only=True).logprobs[0][len(prompt) - 1 :]
            np.testing.assert_allclose(sequence.logprobs, trained, atol=1e-4)
            assert sequence.routing is not None and sequence.routing.shape == (len(tokens) - 1, 2, 2)


@pytest.mark.parametrize("architecture", IN_PEFT)
@pytest.mark.parametrize("kind", ["sampler_weights", "weights"])
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # PEFT makes them itself
def test_peft_loads_the_files_and_computes_the_same(tmp_path: Path, architecture: str, kind: str) -> None:
    run = lora_run(experts_base(architecture))
    with open_desk(tmp_path / "store") as desk:
        desk.save(run, "one", kind=kind)
        with desk.open("one") as archive:
            write_adapter(archive, tmp_path / "files")

    theirs = peft.PeftModel.from_pretrained(tiny_experts(architecture), str(tmp_path / "files"))

    assert_same_logits(logits_of(theirs), live_logits(run), tolerance=1e-4)
    assert not torch.allclose(live_logits(run), logits_of(run.base.model), atol=1e-2)
    config = json.loads((tmp_path / "files" / "adapter_config.json").read_text())
    assert bool(config.get("target_parameters")) == (architecture not in NAMED)


@pytest.mark.parametrize("architecture", IN_PEFT)
def test_gradients_are_pefts_own(architecture: str) -> None:
    """PEFT adapts the fused weights as parameters of three axes, and gate and up share ``lora_A`` as ours do."""
    run = lora_run(experts_base(architecture), train_attn=False, train_unembed=False)
    config = peft.LoraConfig(
        r=4, lora_alpha=32, target_modules=[], target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    )
    theirs: Any = peft.get_peft_model(tiny_experts(architecture), config)
    wrapped = {name: module for name, module in theirs.named_modules() if hasattr(module, "parameter_name")}
    layers = run.adapter().layers
    for name, module in wrapped.items():
        layer = layers[f"{name.removeprefix('base_model.model.').removesuffix('.base_layer')}.{module.parameter_name}"]
        module.lora_A.default.weight.data = layer.down.flatten(0, 1).clone()
        module.lora_B.default.weight.data = layer.up.permute(1, 2, 0).flatten(1, 2).clone()
    one = datum(20)

    apply(run, one)
    logits = theirs(input_ids=torch.tensor(one.tokens)[None].long()).logits[0]
    torch.nn.functional.cross_entropy(logits, torch.tensor(one.inputs["target_tokens"]), reduction="sum").backward()

    ours = gradient(run)
    for name, module in wrapped.items():
        layer_name = f"{name.removeprefix('base_model.model.').removesuffix('.base_layer')}.{module.parameter_name}"
        experts = module.num_experts
        down = module.lora_A.default.weight.grad.view(experts, 4, -1)
        up = module.lora_B.default.weight.grad.view(-1, 4, experts).permute(2, 0, 1)
        torch.testing.assert_close(ours[f"{layer_name}.lora_A"], down, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ours[f"{layer_name}.lora_B"], up, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("kind", ["sampler_weights", "weights"])
def test_a_merged_model_computes_what_the_run_does(tmp_path: Path, architecture: str, kind: str) -> None:
    run = lora_run(experts_directory(tmp_path / "base", architecture))
    expected = live_logits(run)
    with open_desk(tmp_path / "store") as desk:
        desk.save(run, "one", kind=kind)
        with desk.open("one") as archive:
            merge_archive(archive, tmp_path / "base", tmp_path / "merged")

    model, loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)

    assert not loaded["missing_keys"] and not loaded["unexpected_keys"] and not loaded["mismatched_keys"]
    assert_same_logits(logits_of(model), expected)
    assert not torch.allclose(expected, logits_of(run.base.model), atol=1e-2)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_sampler_archive_and_a_training_archive_hold_the_experts(tmp_path: Path, architecture: str) -> None:
    run = lora_run(experts_base(architecture))
    sampled = SampledModel(run.base.model, run.base.tokenizer, max_context=64)
    expected = run.adapter().layers
    with open_desk(tmp_path) as desk:
        for kind in ("sampler_weights", "weights"):
            desk.save(run, kind, kind=kind)
            state = desk.wait(desk.checkpoints.load(kind))
            adapter = read_weights(state, run.base, sampled).adapter
            assert adapter is not None and set(adapter.layers) == set(expected)
            assert all(torch.equal(adapter.layers[name].up, layer.up) for name, layer in expected.items())
        again = TrainedRun(run.base, run.spec)
        again.load(state, with_optimizer=True)

    assert all(torch.equal(value, again.weights()[name]) for name, value in run.weights().items())


@pytest.mark.parametrize(("architecture", "name"), NAMED.items())
def test_names_by_expert_are_those_that_vllm_reads(architecture: str, name: str) -> None:
    """Its FusedMoE layers map these to w1, w2 and w3 of each expert; every matrix has the rank of the adapter."""
    run = lora_run(experts_base(architecture))

    config, tensors = run.peft_files()

    assert tensors[f"base_model.model.model.layers.1.{name}.lora_A.weight"].shape[0] == 4
    assert all(min(value.shape) <= 4 or value.dim() == 2 for value in tensors.values())
    assert name.rpartition(".")[2] in json.loads(config)["target_modules"]
    assert "target_parameters" not in json.loads(config)
