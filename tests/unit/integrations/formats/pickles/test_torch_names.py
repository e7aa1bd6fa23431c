from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.integrations.formats.pickles.torch_names import StorageKind, StoredTensors, torch_names


def tensors(content: bytes = bytes(64), start: int = 0) -> StoredTensors:
    memory = np.frombuffer(bytearray(bytes(start) + content), np.uint8)[start:]
    return StoredTensors(lambda key, size: memory[:size])


def storage(made: StoredTensors, count: int = 8, dtype: torch.dtype = torch.float32) -> Any:
    return made.storage(("storage", StorageKind(dtype), "0", "cpu", count))


def test_tensors_of_one_storage_share_memory_also_where_it_is_not_aligned() -> None:
    made = tensors(start=1)
    held = storage(made)

    one = made.tensor(held, 0, (2, 2), (2, 1), False, None)
    other = made.tensor(held, 1, (3,), (1,), False, None)

    one.fill_(7.0)
    assert other.tolist() == [7.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("first", "shape", "strides"),
    [
        (0, (9,), (1,)),  # past the end
        (8, (1,), (1,)),
        (0, (2,), (8,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
        (0, (-1,), (1,)),
        (0, (2.0,), (1,)),
        (0, (1 << 62, 1 << 62), (0, 0)),
        (0, (2,), (1, 1)),
        (0, (1,) * 100, (1,) * 100),
        (0, "ab", (1, 1)),
        (True, (1,), (1,)),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(first: Any, shape: Any, strides: Any) -> None:
    made = tensors()

    with pytest.raises((pickle.UnpicklingError, ValueError)):
        made.tensor(storage(made), first, shape, strides, False, None)


def test_a_storage_has_one_size_and_a_known_type() -> None:
    made = tensors()
    storage(made, 8)

    for wanted in (
        ("storage", StorageKind(torch.float32), "0", "cpu", 4),
        ("storage", torch.float32, "1", "cpu", 4),
        ("storage", StorageKind(torch.float32), "1", "cpu", -1),
        ("module", StorageKind(torch.float32), "1", "cpu", 4),
        ("storage", StorageKind(torch.float32), "1", "cpu", 4, ("view", 0, 4)),
        5,
    ):
        with pytest.raises(pickle.UnpicklingError):
            made.storage(wanted)


NAMES = torch_names(tensors())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torch.Size", ((1, 2.5),)),
        ("torch.Size", (10**12,)),
        ("builtins.set", (10**12,)),
        ("builtins.set", ([[1]],)),
        ("builtins.complex", ("1", 2.0)),
        ("collections.Counter", ("abc",)),
        ("_codecs.encode", ("abc", "zlib")),
        ("torch.device", (5,)),
        ("torch._utils._rebuild_parameter", ([1], True, None)),
        ("torch._tensor._rebuild_from_type_v2", (print, torch.Tensor, (), None)),
        ("torch._utils._rebuild_tensor_v2", (5, 0, (1,), (1,), False, None)),
    ],
)
def test_what_a_name_stands_for_checks_its_arguments(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((pickle.UnpicklingError, AttributeError)):
        NAMES[name].make(*arguments)


def test_what_a_name_stands_for_is_what_torch_saves() -> None:
    assert NAMES["torch.Size"].make((1, 2)) == torch.Size((1, 2))
    assert NAMES["builtins.set"].make([1, 2]) == {1, 2}
    assert NAMES["builtins.complex"].make(1.0, 2.0) == 1 + 2j
    assert NAMES["collections.Counter"].make({"a": 2}) == Counter("aa")
    assert NAMES["collections.OrderedDict"].make([["a", 1]]) == OrderedDict(a=1)
    assert NAMES["_codecs.encode"].make("ÿa", "latin1") == b"\xffa"
    assert NAMES["torch.device"].make("cuda", 1) == torch.device("cuda:1")
    assert NAMES["torch.bfloat16"] is torch.bfloat16
    parameter = NAMES["torch._utils._rebuild_parameter"].make(torch.ones(2), True, None)
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
