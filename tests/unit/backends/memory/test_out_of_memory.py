"""Errors of allocators are recognised, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.backends.memory.out_of_memory import is_out_of_memory


def test_the_allocators_of_torch_and_numpy_are_recognised() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(1 << 60, dtype=np.uint8)

    found = [is_out_of_memory(each) for each in (of_torch.value, of_numpy.value, torch.OutOfMemoryError("CUDA"))]

    assert found == [True, True, True]


def test_other_errors_are_not() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.zeros(2) @ torch.zeros(3)

    assert not is_out_of_memory(of_torch.value)
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))
