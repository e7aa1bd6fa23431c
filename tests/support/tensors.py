"""Tensors for tests that do not care which library makes them: of torch, or of numpy where torch is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import numpy as np

from chockstone.extras import is_installed

torch: Final[Any] = import_module("torch") if is_installed("torch") else None  # Any: None in a plain install


def tensor(array: np.ndarray[Any, Any]) -> Any:
    return array if torch is None else torch.from_numpy(array)


def zeros(*shape: int) -> Any:
    return tensor(np.zeros(shape, np.float32))


def ones(*shape: int) -> Any:
    return tensor(np.ones(shape, np.float32))


def full(size: int, value: float) -> Any:
    return tensor(np.full(size, value, np.float32))


def arange(stop: int, dtype: str = "float32") -> Any:
    return tensor(np.arange(stop).astype(dtype))


def random_bytes(size: int, *, seed: int) -> Any:
    return tensor(np.random.default_rng(seed).integers(256, size=size, dtype=np.uint8))
