from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import save_file

from tiny_models import lora_run, tiny_base, tiny_model


@pytest.mark.parametrize(
    ("flags", "targets"),
    [
        ({}, 8),
        ({"train_mlp": False, "train_unembed": False}, 4),
        ({"train_attn": False}, 4),
    ],
)
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_peft_loads_the_files_and_computes_the_same(
    tmp_path: Path, architecture: str, flags: dict[str, Any], targets: int
) -> None:
    run = lora_run(tiny_base(architecture), **flags)
    tokens = torch.arange(20)[None]

    config, tensors = run.peft_files()
    (tmp_path / "adapter_config.json").write_bytes(config)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    theirs = peft.PeftModel.from_pretrained(tiny_model(architecture), str(tmp_path))

    with torch.no_grad(), run._weights.applied():
        ours = run.base.model(tokens).logits
    torch.testing.assert_close(ours, theirs(tokens).logits.detach(), rtol=1e-5, atol=1e-5)
    assert json.loads(config)["r"] == 4 and json.loads(config)["lora_alpha"] == 32
    assert len(json.loads(config)["target_modules"]) == targets
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in tensors or not flags.get(
        "train_attn", True
    )


def test_gradients_are_pefts_own() -> None:
    run = lora_run(tiny_base())
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
    config.target_modules = [*json.loads(run.peft_files()[0])["target_modules"]]
    theirs: Any = peft.get_peft_model(tiny_model(), config)
    peft.set_peft_model_state_dict(theirs, run.peft_files()[1])
    tokens = torch.arange(20)[None]

    theirs(input_ids=tokens, labels=tokens).loss.backward()
    with run._weights.parameters.accumulating(total := torch.zeros(run.parameter_count)), run._weights.applied():
        run.base.model(input_ids=tokens, labels=tokens).loss.backward()

    ours = run._weights.parameters.views(total)
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            layer = name.removeprefix("base_model.model.").replace(".default.weight", "")
            torch.testing.assert_close(ours[layer], parameter.grad, rtol=1e-5, atol=1e-5)
