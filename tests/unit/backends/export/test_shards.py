from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from chockstone.backends.export.base_files import TensorShape
from chockstone.backends.export.shards import Output, write_file, write_shards

TENSORS = {name: torch.arange(8, dtype=torch.float32).view(4, 2) + number for number, name in enumerate("abc")}


def output(name: str, dtype: str = "F32") -> Output:
    tensor = TENSORS[name]
    return Output(name, TensorShape(dtype, tuple(tensor.shape)), lambda: iter(torch.split(tensor, 3)))


def test_a_small_model_is_one_file(tmp_path: Path) -> None:
    written: list[int] = []

    write_shards([output(name) for name in TENSORS], tmp_path, on_bytes=written.append)

    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    loaded = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    assert sum(written) == (tmp_path / "model.safetensors").stat().st_size


def test_a_large_model_is_several_files_with_an_index(tmp_path: Path) -> None:
    write_shards([output(name) for name in TENSORS], tmp_path, shard_bytes=2 * 32)

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index == {"metadata": {"total_size": 96}, "weight_map": {"a": first, "b": first, "c": second}}
    assert torch.equal(load_file(tmp_path / second)["c"], TENSORS["c"])


def test_a_tensor_larger_than_a_shard_has_its_own(tmp_path: Path) -> None:
    write_shards([output(name) for name in TENSORS], tmp_path, shard_bytes=1)

    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_rows_are_cast_to_the_type_of_the_output(tmp_path: Path) -> None:
    write_shards([output("a", "BF16")], tmp_path)

    assert torch.equal(load_file(tmp_path / "model.safetensors")["a"], TENSORS["a"].bfloat16())


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"old")

    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", b"new")

    assert (tmp_path / "file").read_bytes() == b"old"
