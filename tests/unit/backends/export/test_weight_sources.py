from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from benchmarks.families.tiny_model import make_config, write_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from chockstone.backends.export.base_files import BaseFiles
from chockstone.backends.export.weight_sources import find_sources, find_ties


def make_empty(directory: Path) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))


def test_a_weight_comes_from_the_tensor_of_its_name(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "llama")

    with BaseFiles(directory) as files:
        sources = find_sources(make_empty(directory), files.shapes)

    assert sources.keys() == load_file(directory / "model.safetensors").keys()
    assert all(source.converter is None and source.keys == [(name, name)] for name, source in sources.items())


def test_fused_experts_come_from_the_tensors_of_the_experts(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "mixtral")
    model = make_empty(directory)

    with BaseFiles(directory) as files:
        sources = find_sources(model, files.shapes)

    fused = sources["model.layers.0.mlp.experts.gate_up_proj"]
    assert fused.converter is not None
    assert [key for _, key in fused.keys if ".w1." in key] == [
        f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight" for expert in range(4)
    ]
    assert sources.keys() == {name for name, _ in model.named_parameters()}


def test_tied_weights_are_found_under_all_their_names() -> None:
    assert find_ties(AutoModelForCausalLM.from_config(make_config("gpt2"))) == {
        "lm_head.weight": "transformer.wte.weight"
    }
    assert find_ties(AutoModelForCausalLM.from_config(make_config("mistral"))) == {}
