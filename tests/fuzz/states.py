"""States: strategies for nested training state with everything in it that an archive carries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

TORCH_TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
NUMPY_TYPES = ["?", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ODD_KEYS = [
    "",
    "$",
    "$x",
    "a.b",
    "__metadata__",
    "value",
    "state",
    "format",
    "a/b",
    "../x",
    "\0",
    "\n",
    "\ud800",
    "🔑",
    "k" * 3000,
]
KEYS = st.sampled_from([*"abcde", *ODD_KEYS]) | st.text(max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63) - 1, 10**100])
    | st.floats()
    | st.text(st.characters(), max_size=10)
    | st.binary(max_size=10)
    | st.complex_numbers(max_magnitude=10)
)
PLAIN_KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | KEYS | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)
TORCH_OBJECTS = st.sampled_from(
    [torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda:1"), torch.Size([2, 3])]
)

LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda tensor: tensor,
    lambda tensor: tensor.mT if tensor.dim() > 1 else tensor,
    lambda tensor: tensor[::2] if tensor.dim() else tensor,
    lambda tensor: tensor.unsqueeze(-1).expand(*tensor.shape, 2),
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    lambda tensor: tensor.unsqueeze(0)[0],
]
NUMPY_LAYOUTS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: array.T,
    lambda array: array[::-1] if array.ndim else array,
    np.asfortranarray,
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(TORCH_TYPES)), draw(SHAPES)
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=count, max_size=count)))
    if dtype is torch.bool:
        content = bytearray(byte & 1 for byte in content)
    flat = torch.frombuffer(content, dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    return draw(st.sampled_from(LAYOUTS))(flat.view(dtype).reshape(shape))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype, shape = np.dtype(draw(st.sampled_from(NUMPY_TYPES))), draw(SHAPES)
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    if dtype == np.bool_:
        content = bytes(byte & 1 for byte in content)
    array = draw(st.sampled_from(NUMPY_LAYOUTS))(np.frombuffer(content, dtype=dtype).reshape(shape))
    return array[()] if array.ndim == 0 and draw(st.booleans()) else array


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(KEYS, inner), max_size=4)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | pairs.map(dict)
        | pairs.map(OrderedDict)
        | st.dictionaries(PLAIN_KEYS, inner, max_size=4)
        | st.sets(PLAIN_KEYS, max_size=3)
        | st.frozensets(PLAIN_KEYS, max_size=3)
    )


@dataclass
class Case:
    """A state, and the tensors that stand in it wherever ``tied`` says, some more than once."""

    state: dict[str, Any]
    pool: list[Any] = field(default_factory=list)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pool = draw(st.lists(tensors() | arrays(), min_size=1, max_size=4))
    leaves = SCALARS | st.sampled_from(pool) | st.sampled_from(pool) | TORCH_OBJECTS
    values = st.recursive(leaves, containers, max_leaves=12)
    return Case(draw(st.dictionaries(KEYS, values, max_size=5)), pool)
