"""The headers of weights tell how much the weights will take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chockstone.backends.export.weight_headers import WeightHeaders


def test_all_files_count(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 4)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(5, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors", {"format": "pt"})

    assert WeightHeaders.read(tmp_path) == WeightHeaders(17, 58)


def test_headers_are_enough(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [10**6, 10**4], "data_offsets": [0, 2 * 10**10]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    assert WeightHeaders.read(tmp_path) == WeightHeaders(10**10, 2 * 10**10)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 20, b"\x02" + bytes(7) + b"[]", b"\x0d" + bytes(7) + b'{"a": {"b":1}}']
)
def test_what_is_no_header_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)

    assert WeightHeaders.read(tmp_path) is None


def test_no_files_tell_nothing(tmp_path: Path) -> None:
    assert WeightHeaders.read(tmp_path) is None
