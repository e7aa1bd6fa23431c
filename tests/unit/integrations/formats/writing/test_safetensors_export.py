from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from chockstone.checkpoints.errors import ExportRefused
from chockstone.integrations.formats.reading.recognition import read_foreign
from chockstone.integrations.formats.writing.safetensors_export import find_model, write_safetensors
from support.integrations.foreign import same
from support.tiny_models import tiny_model

LARGE = 10**12


def test_the_model_of_a_state_is_found(tmp_path: Path) -> None:
    w = torch.ones(2)

    assert find_model({"model": {"w": w}, "epoch": 1}, None).tensors == {"w": w}
    assert find_model({"state_dict": {"w": w}}, None).key == "state_dict"
    nested = find_model({"ema": {"a": {"w": w}, "list": [w], "decay": 0.9}}, "ema")
    assert (list(nested.tensors), nested.skipped) == (["a.w", "list.0"], ("decay",))
    for state, key in [({"x": {"w": w}}, None), ({"model": {"w": w}}, "ema"), ({"model": {}}, None)]:
        with pytest.raises(ExportRefused, match="--part"):
            find_model(state, key)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_bytes", [LARGE, 30_000])
def test_from_pretrained_loads_the_files(tmp_path: Path, shard_bytes: int, *, tied: bool) -> None:
    model = tiny_model(tied=tied)
    part = find_model({"model": model.state_dict()}, None)

    names = write_safetensors(part, tmp_path / "out", shard_bytes=shard_bytes)

    model.config.save_pretrained(tmp_path / "out")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert same(loaded.state_dict(), model.state_dict())
    assert (len(names) > 1) == (shard_bytes < LARGE)
    assert same(
        dict(sorted(read_foreign(tmp_path / "out").state["model"].items())), dict(sorted(model.state_dict().items()))
    )


def test_one_file_holds_every_type_that_safetensors_has(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
    }

    write_safetensors(find_model({"model": tensors}, None), tmp_path / "a.safetensors", shard_bytes=1)

    loaded = load_file(tmp_path / "a.safetensors")
    assert all(same(loaded[name], value.contiguous()) for name, value in tensors.items())
    with pytest.raises(ExportRefused, match="no name"):
        odd = find_model({"model": {"w": torch.ones(1, dtype=torch.complex128)}}, None)
        write_safetensors(odd, tmp_path / "b.safetensors", shard_bytes=1)
    assert not (tmp_path / "b.safetensors").exists()


def test_the_index_names_each_stored_tensor_once(tmp_path: Path) -> None:
    shared = torch.ones(100)
    part = find_model({"model": {"a": shared, "b": torch.zeros(100), "c": shared}}, None)

    write_safetensors(part, tmp_path / "out", shard_bytes=500)

    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 800
    assert sorted(index["weight_map"]) == ["a", "b"]
