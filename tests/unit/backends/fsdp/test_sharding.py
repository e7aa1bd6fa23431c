from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families.tiny_model import make_config, write_model
from transformers import AutoConfig, AutoModelForCausalLM

from chockstone.backends.fsdp.sharding import _find_slots, _longest_list, _separate_layers, compute_buffers
from chockstone.wire.failures import ServerFailure


def make_empty(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", ["gemma3_text", "gpt2", "gpt_neo", "mamba2", "deepseek_v3"])
def test_computed_buffers_are_those_of_a_loaded_model(tmp_path: Path, family: str) -> None:
    directory = write_model(tmp_path, family)
    model = make_empty(AutoConfig.from_pretrained(directory))

    compute_buffers(model)

    loaded = AutoModelForCausalLM.from_pretrained(directory)
    expected = dict(loaded.named_non_persistent_buffers())
    found = dict(model.named_non_persistent_buffers())
    assert found.keys() == expected.keys()
    assert all(torch.equal(buffer, expected[name]) for name, buffer in found.items())
    assert all(weight.is_meta for weight in model.parameters())


def test_a_buffer_that_nobody_computes_is_refused() -> None:
    model = make_empty(make_config("llama"))
    model.model.register_buffer("secret", torch.ones(3, device="meta"), persistent=False)

    with pytest.raises(ServerFailure, match="'model.secret' is in no file"):
        compute_buffers(model)


def test_layers_are_separate_unless_they_share_weights() -> None:
    model = make_empty(make_config("llama"))
    layers = list(model.model.layers)
    assert set(_separate_layers(model, _find_slots(model))) == set(layers)

    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight

    assert _separate_layers(model, _find_slots(model)) == layers[2:]


def test_the_layers_of_a_model_that_does_not_mark_them_are_its_largest_list() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    model = torch.nn.ModuleDict({"small": torch.nn.ModuleList([torch.nn.Linear(2, 2)]), "layers": layers})

    assert _longest_list(model) == list(layers)
    assert _longest_list(torch.nn.Linear(2, 2)) == []
