from __future__ import annotations

import numpy as np
import pytest

from chockstone.backends.export.expert_files import (
    ExpertFiles,
    choose_expert_files,
    find_expert_part,
    fused_matrix,
    split_matrix,
)

EXPERTS, OUT, IN, RANK = 3, 8, 5, 2
NAME = "model.layers.7.mlp.experts.gate_up_proj"


def values(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_names_by_expert_are_those_of_the_base_models_files() -> None:
    up = values(EXPERTS, OUT, RANK)

    found = dict(split_matrix(NAME, "lora_B", up, choose_expert_files("mixtral")))

    prefix = "model.layers.7.block_sparse_moe.experts"
    assert list(found) == [f"{prefix}.{expert}.{part}" for expert in range(EXPERTS) for part in ("w1", "w3")]
    np.testing.assert_array_equal(found[f"{prefix}.2.w3"], up[2, OUT // 2 :])


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral"])
def test_every_name_by_expert_is_understood_again(model_type: str) -> None:
    files = choose_expert_files(model_type)
    assert files is not None

    for name in (NAME, NAME.replace("gate_up_proj", "down_proj")):
        layers = [layer for layer, _ in split_matrix(name, "lora_A", values(EXPERTS, RANK, IN), files)]
        parts = [find_expert_part(layer, files, "gate_up_proj") for layer in layers]
        assert {part.name for part in parts if part} == {name}
        assert len({(part.expert, part.number) for part in parts if part}) == len(layers)
    assert find_expert_part("model.layers.7.self_attn.q_proj", files, "gate_up_proj") is None
    assert find_expert_part("model.layers.7.mlp.experts.0.other", files, "gate_up_proj") is None


def test_fused_matrices_have_the_layout_of_peft_and_come_back() -> None:
    down, up = values(EXPERTS, RANK, IN), values(EXPERTS, OUT, RANK)

    ((layer, down_2d),) = split_matrix(NAME, "lora_A", down, None)
    ((_, up_2d),) = split_matrix(NAME, "lora_B", up, None)

    assert layer == "model.layers.7.mlp.experts.base_layer"
    change = np.einsum(
        "o r e, e r i -> e o i", up_2d.reshape(OUT, RANK, EXPERTS), down_2d.reshape(EXPERTS, RANK, IN)
    )  # as PEFT does
    np.testing.assert_allclose(change, up @ down, atol=1e-5)
    np.testing.assert_array_equal(fused_matrix("lora_A", down_2d, RANK), down)
    np.testing.assert_array_equal(fused_matrix("lora_B", up_2d, RANK), up)


def test_names_survive_json() -> None:
    files = choose_expert_files("qwen3_moe")
    assert files is not None

    assert ExpertFiles.from_json(files.to_json()) == files
    assert choose_expert_files("gpt_oss") is None
