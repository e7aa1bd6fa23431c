"""Element types: one name each, as safetensors spells it, with the numpy and torch types behind it.

Types that safetensors has no name for travel as raw bytes (``U8``) and keep their own name in the
tree, so they come back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chockstone.extras import require


@dataclass(frozen=True, slots=True)
class Dtype:
    name: str  # unique; equals ``stored`` where safetensors knows the type
    stored: str  # what the safetensors header says
    itemsize: int
    torch_name: str
    numpy_name: str | None  # None: numpy itself has no such type


_TABLE = (
    # name, stored, bytes, torch, numpy
    ("BOOL", "BOOL", 1, "bool", "bool"),
    ("U8", "U8", 1, "uint8", "uint8"),
    ("I8", "I8", 1, "int8", "int8"),
    ("F8_E5M2", "F8_E5M2", 1, "float8_e5m2", None),
    ("F8_E4M3", "F8_E4M3", 1, "float8_e4m3fn", None),
    ("F8_E8M0", "U8", 1, "float8_e8m0fnu", None),
    ("F8_E5M2FNUZ", "U8", 1, "float8_e5m2fnuz", None),
    ("F8_E4M3FNUZ", "U8", 1, "float8_e4m3fnuz", None),
    ("F4_E2M1_X2", "U8", 1, "float4_e2m1fn_x2", None),
    ("I16", "I16", 2, "int16", "int16"),
    ("U16", "U16", 2, "uint16", "uint16"),
    ("F16", "F16", 2, "float16", "float16"),
    ("BF16", "BF16", 2, "bfloat16", None),
    ("I32", "I32", 4, "int32", "int32"),
    ("U32", "U32", 4, "uint32", "uint32"),
    ("F32", "F32", 4, "float32", "float32"),
    ("C32", "U8", 4, "complex32", None),
    ("I64", "I64", 8, "int64", "int64"),
    ("U64", "U64", 8, "uint64", "uint64"),
    ("F64", "F64", 8, "float64", "float64"),
    ("C64", "C64", 8, "complex64", "complex64"),
    ("C128", "U8", 16, "complex128", "complex128"),
)

BY_NAME: dict[str, Dtype] = {row[0]: Dtype(*row) for row in _TABLE}
BY_TORCH_NAME: dict[str, Dtype] = {dtype.torch_name: dtype for dtype in BY_NAME.values()}
# Types that numpy gets from the package ml_dtypes, which calls them as torch does.
ML_DTYPES = frozenset(
    ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e5m2fnuz", "float8_e4m3fnuz")
)
BY_NUMPY_NAME: dict[str, Dtype] = {
    dtype.numpy_name: dtype for dtype in BY_NAME.values() if dtype.numpy_name is not None
} | {name: BY_TORCH_NAME[name] for name in ML_DTYPES}
STORED_ITEMSIZE: dict[str, int] = {dtype.stored: BY_NAME[dtype.stored].itemsize for dtype in BY_NAME.values()}


def numpy_dtype(dtype: Dtype, key: str) -> np.dtype[Any]:
    """The numpy type of the array ``key``. Raises ExtraMissing for a type of ml_dtypes where that is not installed."""
    if dtype.numpy_name is not None:
        return np.dtype(dtype.numpy_name)
    require("jax", f"array {key!r} of {dtype.torch_name}", packages=["ml_dtypes"])
    import ml_dtypes

    made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.torch_name))
    return made
