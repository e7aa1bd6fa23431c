from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.checkpoints.format.dtypes import (
    BY_NAME,
    BY_NUMPY_NAME,
    BY_TORCH_NAME,
    ML_DTYPES,
    STORED_ITEMSIZE,
    Dtype,
    numpy_dtype,
)


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=lambda dtype: dtype.name)
def test_sizes_are_those_of_numpy_and_torch(dtype: Dtype) -> None:
    if dtype.numpy_name is not None:
        assert np.dtype(dtype.numpy_name).itemsize == dtype.itemsize
        assert BY_NUMPY_NAME[dtype.numpy_name] is dtype
    if hasattr(torch, dtype.torch_name):
        assert getattr(torch, dtype.torch_name).itemsize == dtype.itemsize
    assert BY_TORCH_NAME[dtype.torch_name] is dtype


def test_types_that_safetensors_does_not_know_are_stored_as_bytes() -> None:
    unknown = {dtype.name for dtype in BY_NAME.values() if dtype.stored != dtype.name}

    assert all(BY_NAME[name].stored == "U8" for name in unknown)
    assert STORED_ITEMSIZE["U8"] == 1


def test_types_of_ml_dtypes_are_numpy_types_by_the_name_that_torch_has() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    for name in ML_DTYPES:
        assert np.dtype(getattr(ml_dtypes, name)).name == name
        assert numpy_dtype(BY_NUMPY_NAME[name], "x") == np.dtype(getattr(ml_dtypes, name))
        assert BY_NUMPY_NAME[name] is BY_TORCH_NAME[name]
        assert np.dtype(getattr(ml_dtypes, name)).itemsize == BY_NUMPY_NAME[name].itemsize
