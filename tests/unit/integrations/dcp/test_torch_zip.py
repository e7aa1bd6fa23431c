"""A tensor is found in the zip of ``torch.save`` without a copy, and nothing else is taken for one."""

from __future__ import annotations

import io

import pytest
import torch

from chockstone.integrations.dcp.torch_zip import map_tensor


def saved(value: object) -> memoryview:
    content = io.BytesIO()
    torch.save(value, content)
    return memoryview(bytearray(content.getvalue()))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12, dtype=torch.int16)[3:7],
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
    ],
)
def test_a_plain_tensor_comes_back(tensor: torch.Tensor) -> None:
    found = map_tensor(saved(tensor))

    assert found is not None
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)


def test_an_aligned_tensor_is_a_view() -> None:
    item = saved(torch.zeros(1000))
    found = map_tensor(item)
    assert found is not None
    before = bytes(item)

    found.fill_(1.0)

    assert bytes(item) != before, "the bytes of the zip are those of the tensor"


@pytest.mark.parametrize(
    "value",
    [[torch.ones(2)], {"a": 1}, torch.tensor([1 + 2j]).conj(), torch.ones(2).to_sparse(), torch.empty(0)],
    ids=["list", "dict", "conjugated", "sparse", "empty"],
)
def test_anything_else_is_left_to_torch(value: object) -> None:
    assert map_tensor(saved(value)) is None


def test_damage_is_left_to_torch() -> None:
    item = saved(torch.arange(12.0))

    assert map_tensor(item[:-40]) is None
    assert map_tensor(memoryview(b"no zip")) is None
