from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file

from chockstone.backends.training.run import TrainedRun
from chockstone.checkpoints.restoring.export import export_members
from support.backends.saving import assert_same_logits, live_logits, logits_of, open_desk
from support.tiny_models import lora_run, tiny_base, tiny_model

KINDS = ["sampler_weights", "external_weights"]
MODULES = {
    "train_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "train_mlp": {"gate_proj", "up_proj", "down_proj"},
    "train_unembed": {"lm_head"},
}


def export(run: TrainedRun, directory: Path, kind: str = "external_weights") -> Path:
    """The files that somebody downloads."""
    with open_desk(directory / "store") as desk:
        desk.save(run, "one", kind=kind)
        with desk.open("one") as archive:
            export_members(archive, directory / "files")
    return directory / "files"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("off", [(), ("train_unembed",), ("train_mlp",), ("train_attn",), ("train_mlp", "train_attn")])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # peft's advice to trainers
def test_peft_loads_the_files_and_computes_the_same(
    tmp_path: Path, architecture: str, tied: bool, off: tuple[str, ...], kind: str
) -> None:
    run = lora_run(tiny_base(architecture, tied=tied), **dict.fromkeys(off, False))

    files = export(run, tmp_path, kind)
    theirs = peft.PeftModel.from_pretrained(tiny_model(architecture, tied=tied), str(files))

    assert_same_logits(logits_of(theirs), live_logits(run), tolerance=1e-5)
    config = json.loads((files / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 32)
    assert set(config["target_modules"]) == set().union(*(MODULES[flag] for flag in MODULES.keys() - set(off)))


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


# What vLLM 0.26 holds an adapter to before it serves it (its PEFTHelper, LoRAModel and LoRAConfig).
REQUIRED = {"r": int, "lora_alpha": int, "target_modules": list}
UNSUPPORTED = (  # any of these that is set is refused
    "modules_to_save",
    "use_dora",
    "lora_bias",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
    "trainable_token_indices",
    "rank_pattern",  # older ones ignore it, and compute something else
    "alpha_pattern",
)
MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that ``--max-lora-rank`` takes
IN_BLOCKS = MODULES["train_attn"] | MODULES["train_mlp"]
EMBEDDINGS = {
    "embed_tokens",
    "lm_head",
}  # Llama's; Qwen's only since 2026: before, export without train_unembed, or merge


def vllm_layers(files: Path, *, modules: set[str]) -> set[str]:
    """The layers that an engine with these modules would adapt; raises as it would."""
    config = json.loads((files / "adapter_config.json").read_text())
    for name, kind in REQUIRED.items():
        assert type(config[name]) is kind, f"{name} is required, a {kind.__name__}"
    for name in UNSUPPORTED:
        assert not config.get(name), f"{name} is not supported"
    assert config.get("bias", "none") == "none"
    assert config.get("init_lora_weights", True) is True  # some ways to start change the base's weights at loading
    assert not config.get("use_rslora", False)  # supported, but the scale would be another
    assert 0 < config["r"] <= max(MAX_RANKS)
    assert config["lora_alpha"] / config["r"] == 32 / config["r"]
    tensors = load_file(files / "adapter_model.safetensors")
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, layer, matrix = name[:17], name[17 : -len(".lora_A.weight")], name[-len("lora_A.weight") :]
        assert prefix == "base_model.model." and matrix in ("lora_A.weight", "lora_B.weight"), f"{name} is unsupported"
        assert layer.rpartition(".")[2] in modules, f"expected target modules {modules} but received {layer}"
        assert "base_layer" not in name and "lora_embedding" not in name
        layers.setdefault(layer, {})[matrix[:6]] = tensor
    for pair in layers.values():
        assert pair["lora_A"].shape[0] == pair["lora_B"].shape[1] == config["r"]
        assert {tensor.dtype for tensor in pair.values()} <= {torch.float32, torch.bfloat16, torch.float16}
    return set(layers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 32, 320])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_the_files_keep_to_the_rules_of_vllm(tmp_path: Path, architecture: str, rank: int, kind: str) -> None:
    base = tiny_base(architecture)
    run = lora_run(base, rank=rank)

    layers = vllm_layers(export(run, tmp_path, kind), modules=IN_BLOCKS | EMBEDDINGS)

    assert layers == set(base.layers)


def test_a_run_without_train_unembed_needs_no_adapted_output_layer(tmp_path: Path) -> None:
    run = lora_run(tiny_base(), train_unembed=False)

    layers = vllm_layers(export(run, tmp_path), modules=IN_BLOCKS)

    assert layers == set(run.base.layers) - {"lm_head"}


def test_the_rules_would_notice(tmp_path: Path) -> None:
    files = export(lora_run(tiny_base()), tmp_path)
    with pytest.raises(AssertionError, match="but received lm_head"):
        vllm_layers(files, modules=IN_BLOCKS)

    config = json.loads((files / "adapter_config.json").read_text())
    (files / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["lm_head"]}))

    with pytest.raises(AssertionError, match="modules_to_save is not supported"):
        vllm_layers(files, modules=IN_BLOCKS | EMBEDDINGS)
