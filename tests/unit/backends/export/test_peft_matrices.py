from __future__ import annotations

import pytest
import torch

from chockstone.backends.export.expert_files import choose_expert_files
from chockstone.backends.export.peft_matrices import read_peft_matrices
from chockstone.wire.failures import BadRequest
from support.tiny_experts import ARCHITECTURES, experts_base
from support.tiny_models import lora_run

FILES = choose_expert_files("qwen3_moe")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_files_of_a_run_are_read_back_as_its_adapter(architecture: str) -> None:
    run = lora_run(experts_base(architecture), rank=3)
    _, tensors = run.peft_files()

    layers = read_peft_matrices(tensors, rank=3, files=run.base.expert_files)

    expected = run.adapter().layers
    assert set(layers) == set(expected)
    for name, layer in expected.items():
        assert torch.equal(layers[name].down, layer.down) and torch.equal(layers[name].up, layer.up)


def test_matrices_that_do_not_fit_together_are_refused() -> None:
    _, tensors = lora_run(experts_base(), rank=3).peft_files()
    first = "base_model.model.model.layers.0.mlp.experts"
    cases = {
        "do not come in pairs": {name: value for name, value in tensors.items() if "q_proj.lora_B" not in name},
        "lacks experts": {name: value for name, value in tensors.items() if ".experts.2." not in name or "up_" in name},
        "different shapes": tensors | {f"{first}.1.down_proj.lora_A.weight": torch.zeros(3, 5)},
        "different matrices lora_A": tensors | {f"{first}.1.up_proj.lora_A.weight": torch.zeros(3, 32)},
    }
    for message, changed in cases.items():
        with pytest.raises(BadRequest, match=message):
            read_peft_matrices(changed, rank=3, files=FILES)
    with pytest.raises(BadRequest, match="not to rank 3"):
        odd = {f"{first}.lora_A.weight": torch.zeros(8, 5), f"{first}.lora_B.weight": torch.zeros(4, 8)}
        read_peft_matrices(odd, rank=3, files=None)
