from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chockstone.backends.export.gguf.families import find_family
from chockstone.backends.export.gguf.tensors import GgufTensor, choose_type, plan_tensors
from chockstone.backends.export.merge import open_merged
from chockstone.checkpoints.errors import ExportRefused
from support.backends.gguf_models import make_base, save
from support.backends.saving import open_desk


def change(base: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors in the files of a base model; None removes one."""
    path = base / "model.safetensors"
    tensors = {**load_file(path), **changes}
    path.unlink()
    save_file({name: each for name, each in tensors.items() if each is not None}, path, metadata={"format": "pt"})


def planned(store: Path, base: Path) -> dict[str, GgufTensor]:
    with open_desk(store) as desk, desk.open("one") as archive, open_merged(archive, base) as model:
        tensors = plan_tensors(model, find_family(model.parsed_config), choose_type(model), None)
    return {tensor.name: tensor for tensor in tensors}


@dataclass(frozen=True, slots=True)
class Made:
    base: Path
    store: Path

    def changed(self, tmp_path: Path, changes: dict[str, torch.Tensor | None]) -> Path:
        """A copy of the base model with other tensors."""
        base = tmp_path / "changed"
        shutil.copytree(self.base, base)
        change(base, changes)
        return base

    def refused(self, tmp_path: Path, name: str, tensor: torch.Tensor | None) -> str:
        """What is said about a base model with another tensor."""
        with pytest.raises(ExportRefused) as caught:
            planned(self.store, self.changed(tmp_path, {name: tensor}))
        return str(caught.value)


def make(home: Path, model_type: str, flags: dict[str, bool], **changes: Any) -> Made:
    base = make_base(home / "base", model_type, **changes)
    save(base, home / "store", **flags)
    return Made(base.directory, home / "store")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a run that trained layers of the MLP only, and an output layer that is the embedding."""
    flags = {"train_attn": False, "train_unembed": False}
    return make(tmp_path_factory.mktemp("llama"), "llama", flags, tie_word_embeddings=True, attention_bias=True)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a run that did not train the experts."""
    flags = {"train_mlp": False, "train_unembed": False}
    return make(tmp_path_factory.mktemp("mixture"), "qwen3_moe", flags)


def test_rows_that_are_rotated_together_stand_together(tmp_path: Path, llama: Made) -> None:
    base = llama.changed(tmp_path, {"model.layers.0.self_attn.k_proj.bias": torch.arange(32.0)})

    with open_desk(llama.store) as desk, desk.open("one") as archive, open_merged(archive, base) as model:
        tensors = plan_tensors(model, find_family(model.parsed_config), "f32", None)
        [bias] = [torch.cat(list(each.pieces())) for each in tensors if each.name == "blk.0.attn_k.bias"]

    heads = bias.view(2, 16).tolist()
    assert heads[0] == [float(row) for pair in zip(range(8), range(8, 16), strict=True) for row in pair]
    assert heads[1] == [row + 16 for row in heads[0]]


def test_every_tensor_has_its_name_and_its_shape(mixture: Made) -> None:
    tensors = planned(mixture.store, mixture.base)

    layer = {
        "attn_norm.weight": (64,),
        "attn_q.weight": (64, 64),
        "attn_k.weight": (32, 64),
        "attn_v.weight": (32, 64),
        "attn_q_norm.weight": (16,),
        "attn_k_norm.weight": (16,),
        "attn_output.weight": (64, 64),
        "ffn_norm.weight": (64,),
        "ffn_gate_inp.weight": (6, 64),
        "ffn_gate_exps.weight": (6, 32, 64),
        "ffn_up_exps.weight": (6, 32, 64),
        "ffn_down_exps.weight": (6, 64, 32),
    }
    expected = {f"blk.{number}.{name}": extents for number in (0, 1) for name, extents in layer.items()}
    expected |= {"token_embd.weight": (300, 64), "output_norm.weight": (64,), "output.weight": (300, 64)}
    assert {name: tensor.extents for name, tensor in tensors.items()} == expected


def test_tensors_that_transformers_does_not_read_are_left_out(tmp_path: Path, llama: Made) -> None:
    base = llama.changed(tmp_path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})

    names = planned(llama.store, base).keys()
    assert names == planned(llama.store, llama.base).keys() and "output.weight" not in names


def test_a_head_in_the_files_is_written_though_the_configuration_ties_it(tmp_path: Path, llama: Made) -> None:
    """transformers uses it, too, if it differs from the embedding."""
    base = llama.changed(tmp_path, {"lm_head.weight": torch.ones(300, 64)})

    assert "output.weight" in planned(llama.store, base)


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("norm", torch.ones(32), "has shape [32] in the base model's files and [64] according to its config"),
        ("embed_tokens", torch.ones(310, 64), "has shape [310, 64] in the base model's files and [300, 64]"),
        ("norm", None, "the base model's files have no 'model.norm.weight', which its config.json describes"),
        ("norm", torch.ones(64).to(torch.int8), "'model.norm.weight' of the base model is quantised (I8)"),
    ],
)
def test_tensors_that_are_not_those_of_the_configuration_are_refused(
    tmp_path: Path, llama: Made, name: str, tensor: torch.Tensor | None, complaint: str
) -> None:
    assert complaint in llama.refused(tmp_path, f"model.{name}.weight", tensor)


def test_experts_that_are_not_those_of_the_configuration_are_refused(tmp_path: Path, mixture: Made) -> None:
    name = "model.layers.1.mlp.experts.3.up_proj.weight"

    assert "has shape [16, 64]" in mixture.refused(tmp_path / "a", name, torch.ones(16, 64))
    assert f"have no '{name}'" in mixture.refused(tmp_path / "b", name, None)
    assert "have no 'lm_head.weight'" in mixture.refused(tmp_path / "c", "lm_head.weight", None)


def test_biases_for_which_there_is_no_place_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path, "qwen3", {}, attention_bias=True)

    with pytest.raises(ExportRefused, match=r"no place for 'model.layers.0.self_attn.\w_proj.bias' in models of arch"):
        planned(made.store, made.base)


def test_a_head_of_its_own_is_refused_where_llama_cpp_uses_the_embedding(tmp_path: Path) -> None:
    made = make(tmp_path, "gemma2", {})

    with pytest.raises(ExportRefused, match="train with train_unembed=False"):
        planned(made.store, made.base)


def test_a_copy_of_a_tied_head_is_left_out_where_llama_cpp_uses_the_embedding(tmp_path: Path) -> None:
    made = make(tmp_path, "gemma2", {"train_unembed": False})
    embedding = load_file(made.base / "model.safetensors")["model.embed_tokens.weight"]
    names = planned(made.store, made.base).keys()

    copied = made.changed(tmp_path / "a", {"lm_head.weight": embedding.clone()})
    assert planned(made.store, copied).keys() == names and "output.weight" not in names
    for number, head in enumerate((embedding + 1, embedding.bfloat16())):
        refused = made.refused(tmp_path / str(number), "lm_head.weight", head)
        assert "the output layer differs from the embedding" in refused and "train_unembed" not in refused


def test_the_type_is_that_of_most_numbers(tmp_path: Path, llama: Made) -> None:
    tensors = load_file(llama.base / "model.safetensors")
    base = llama.changed(tmp_path, {name: each.bfloat16() for name, each in tensors.items() if each.dim() > 1})

    kinds = {name: tensor.kind.name for name, tensor in planned(llama.store, base).items()}

    assert kinds["blk.0.ffn_up.weight"] == "BF16" and kinds["blk.0.ffn_norm.weight"] == "F32"
