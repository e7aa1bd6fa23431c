from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chockstone.backends.export import base_files
from chockstone.backends.export.base_files import BaseFiles, TensorShape, row_ranges
from chockstone.checkpoints.errors import ExportRefused

WIDE = torch.arange(12, dtype=torch.float32).view(6, 2)
ONE = torch.tensor(3.0)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"wide": WIDE}, tmp_path / "a.safetensors")
    save_file({"one": ONE}, tmp_path / "b.safetensors")
    index = {"weight_map": {"wide": "a.safetensors", "one": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_tensors_of_several_files_are_found_by_name(sharded: Path) -> None:
    with BaseFiles(sharded) as files:
        assert files.shapes == {"wide": TensorShape("F32", (6, 2)), "one": TensorShape("F32", ())}
        assert torch.equal(files.rows("wide", slice(2, 4)), WIDE[2:4])


def test_a_tensor_is_read_in_pieces_of_its_first_axis(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_files, "PIECE_BYTES", 4 * 2 * 4)
    with BaseFiles(sharded) as files:
        pieces = list(files.pieces("wide"))
        scalar = list(files.pieces("one"))

    assert [len(piece) for piece in pieces] == [4, 2]
    assert torch.equal(torch.cat(pieces), WIDE)
    assert scalar == [ONE]


@pytest.mark.parametrize("extents", [(0, 4), (1, 0), (7, 3)])
def test_row_ranges_cover_the_first_axis(extents: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_files, "PIECE_BYTES", 24)

    ranges = list(row_ranges(TensorShape("F32", extents)))

    assert [row for each in ranges for row in range(each.start, each.stop)] == list(range(extents[0]))


def test_a_directory_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"no file '.*model\.safetensors'"), BaseFiles(tmp_path):
        pass


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x08")

    with pytest.raises(ExportRefused, match="cannot be read"), BaseFiles(tmp_path):
        pass


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ExportRefused, match="is not an index of safetensors files"), BaseFiles(tmp_path):
        pass


def test_an_index_names_no_file_outside_its_directory(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    save_file({"wide": WIDE}, tmp_path / "a.safetensors")
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wide": "../a.safetensors"}}))

    with pytest.raises(ExportRefused, match="no file"), BaseFiles(base):
        pass
