"""A value is found in the zip of ``torch.save`` without a copy, and nothing is inflated."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.pickles.torch_zip import TorchZip
from support.integrations.foreign import rewrite_zip, saved_bytes, with_pickle


def load(content: bytes, *, start: int = 0) -> Any:
    return TorchZip("item", np.frombuffer(bytearray(bytes(start) + content), np.uint8)[start:]).load()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12, dtype=torch.int16)[3:7],
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.tensor([1, 2, 65535], dtype=torch.uint16),
        torch.zeros(3, dtype=torch.float8_e4m3fn),
        torch.empty(0, 4),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
@pytest.mark.parametrize("start", [0, 3])
def test_a_tensor_comes_back(tensor: torch.Tensor, start: int) -> None:
    found = load(saved_bytes(tensor), start=start)

    assert type(found) is type(tensor)
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(found.to(torch.complex128), tensor.to(torch.complex128))


def test_an_aligned_tensor_is_a_view() -> None:
    memory = np.frombuffer(bytearray(saved_bytes(torch.zeros(1000))), np.uint8)
    before = memory.tobytes()

    TorchZip("item", memory).load().fill_(1.0)

    assert memory.tobytes() != before, "the bytes of the zip are those of the tensor"


def test_a_pickle_that_is_compressed_is_refused_before_it_is_inflated() -> None:
    bomb = rewrite_zip(with_pickle(b"\x80\x02" + b"N0" * 5_000_000 + b"N."), compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000

    with pytest.raises(ImportRefused, match="is compressed"):
        load(bomb)


@pytest.mark.parametrize(
    "value",
    [torch.ones(2).to_sparse(), torch.nn.Linear(2, 2)],
    ids=["sparse", "module"],
)
@pytest.mark.filterwarnings("ignore")
def test_other_objects_are_named(value: object) -> None:
    with pytest.raises(ImportRefused, match="something other than tensors and plain values: "):
        load(saved_bytes(value))


def test_memory_that_the_structure_asks_for_is_not_allocated() -> None:
    """torch's own restricted unpickler calls bytearray(10**12) for this pickle."""
    asks = b"\x80\x02c__builtin__\nbytearray\n\x8a\x06\x00\x10\xa5\xd4\xe8\x00\x85R."

    with pytest.raises(ImportRefused, match="builtins.bytearray"):
        load(with_pickle(asks))
