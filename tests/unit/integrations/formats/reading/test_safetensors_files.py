from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.reading.mapped_files import MappedFile, SourceDirectory
from chockstone.integrations.formats.reading.safetensors_files import (
    is_safetensors,
    read_safetensors,
    read_sharded,
)
from support.integrations.foreign import same, trained

TENSORS = {
    "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "odd": torch.ones(3, dtype=torch.uint8),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 2),
}


def test_tensors_are_read_as_the_safetensors_package_wrote_them(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"format": "pt"})
    file = MappedFile.open(tmp_path / "a.safetensors")

    loaded = read_safetensors(file)

    assert is_safetensors(file)
    assert loaded.keys() == TENSORS.keys()
    assert all(same(loaded[name], value) for name, value in TENSORS.items())


def test_tied_names_of_save_model_are_read(tmp_path: Path) -> None:
    module, _ = trained()
    save_model(module, str(tmp_path / "a.safetensors"))

    loaded = read_safetensors(MappedFile.open(tmp_path / "a.safetensors"))

    assert loaded.keys() == module.state_dict().keys()
    assert loaded["2.weight"] is loaded["3.weight"]


def header(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def entry(start: int, end: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 8 + b"{}",
        header(a=entry(0, 8)),
        header(a=entry(0, 8)) + b"\0" * 9,
        header(a=entry(0, 8), b=entry(0, 8)) + b"\0" * 8,
        header(a=entry(0, 8, (1 << 40,))) + b"\0" * 8,
        header(a=entry(0, 8, dtype="OBJECT")) + b"\0" * 8,
        header(a=[]) + b"\0" * 8,
        (2).to_bytes(8, "little") + b"[]",
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)

    with pytest.raises(ImportRefused, match="not a sound safetensors file"):
        read_safetensors(MappedFile.open(tmp_path / "a.safetensors"))


def test_an_index_gathers_its_files_and_may_name_no_others(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    save_file({"a": torch.ones(2)}, inner / "1.safetensors")
    save_file({"b": torch.zeros(2)}, inner / "2.safetensors")
    save_file({"c": torch.zeros(2)}, tmp_path / "secret.safetensors")

    def read(places: object) -> dict[str, torch.Tensor]:
        (inner / "index.json").write_text(json.dumps({"weight_map": places}))
        return dict(read_sharded(SourceDirectory(inner), "index.json", read_safetensors))

    assert list(read({"b": "2.safetensors", "a": "1.safetensors"})) == ["b", "a"]
    for places, complaint in [
        ({"c": "../secret.safetensors"}, "not a file of its own directory"),
        ({"x": "1.safetensors"}, "which is not there"),
        ({"a": "3.safetensors"}, "there is no"),
        (["a"], "no 'weight_map'"),
    ]:
        with pytest.raises(ImportRefused, match=complaint):
            read(places)
