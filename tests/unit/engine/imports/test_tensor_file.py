from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from chockstone.engine.imports.tensor_file import TensorFile
from chockstone.wire.failures import BadRequest


def test_numbers_of_each_type_are_those_that_torch_reads(tmp_path: Path) -> None:
    tensors = {
        name: torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
        for name, dtype in (("full", torch.float32), ("brain", torch.bfloat16), ("half", torch.float16))
    }
    save_file(tensors, tmp_path / "a.safetensors")

    with TensorFile(tmp_path / "a.safetensors", max_header_bytes=4096) as file:
        for name, tensor in tensors.items():
            assert np.array_equal(file.numbers(name), tensor.float().numpy())
        assert file.digest() == hashlib.sha256((tmp_path / "a.safetensors").read_bytes()).hexdigest()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 2)}, tmp_path / "sound")
    sound = (tmp_path / "sound").read_bytes()
    length = int.from_bytes(sound[:8], "little")
    damaged = {
        "empty": b"",
        "short": sound[:-1],
        "long": sound + b"\0",
        "huge header": (1 << 40).to_bytes(8, "little") + sound[8:],
        "no json": sound[:8] + b"x" * length + sound[8 + length :],
        "holes": sound.replace(b"[2,2]", b"[2,1]"),
        "a pickle": b"\x80\x02}q\x00." + b"\0" * 64,
    }
    for name, content in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadRequest, match=r"safetensors"):
            TensorFile(path, max_header_bytes=4096)


def test_a_header_larger_than_the_model_needs_is_refused(tmp_path: Path) -> None:
    save_file({f"tensor-{number}": torch.ones(1) for number in range(200)}, tmp_path / "many")

    with pytest.raises(BadRequest, match="need no more than 4096"):
        TensorFile(tmp_path / "many", max_header_bytes=4096)


def test_whole_numbers_and_links_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.int32)}, tmp_path / "whole")
    os.symlink(tmp_path / "whole", tmp_path / "link")

    with pytest.raises(BadRequest, match="I32"):
        TensorFile(tmp_path / "whole", max_header_bytes=4096)
    with pytest.raises(OSError, match="symbolic links"):
        TensorFile(tmp_path / "link", max_header_bytes=4096)
