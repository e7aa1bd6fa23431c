"""Checkpoints of other programs, made by these programs, and hostile imitations of them."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small module with tied weights and an optimizer that has moments."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
    )
    module[3].weight = module[2].weight
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    module(torch.ones(2, 6)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def training_state() -> dict[str, Any]:
    """A state with all types that a training loop keeps."""
    module, optimizer = trained()
    return {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": {"numpy": ("MT19937", np.arange(624, dtype=np.uint32), 5, 0, 0.25), "torch": torch.get_rng_state()},
        "epoch": 3,
        "losses": [0.5, float("inf"), 2**70],
        "names": frozenset({"a", "b"}),
        "scale": np.float32(1.5),
        "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        "note": "größer",
        "nothing": None,
    }


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal in structure, types, values and bits."""
    if isinstance(one, torch.Tensor):
        equal = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return equal and one.contiguous().view(-1).view(torch.uint8).equal(
            other.contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def saved_bytes(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def rewrite_zip(
    content: bytes,
    change: Callable[[str, bytes], bytes] = lambda _, record: record,
    *,
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """A torch file with each record replaced by what ``change`` makes of it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(out, "w", compression) as target:
        for info in source.infolist():
            target.writestr(info.filename, change(info.filename, source.read(info)))
    return out.getvalue()


class Executes:
    """A pickle of this runs a command when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {self.marker}",)


def with_pickle(payload: bytes) -> bytes:
    """A torch file whose structure is this pickle."""
    return rewrite_zip(
        saved_bytes({"w": torch.ones(4)}), lambda name, record: payload if name.endswith("data.pkl") else record
    )


def nested_pickle(levels: int) -> bytes:
    """A small pickle of a list that holds itself ten times at each of so many levels."""
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value] * 10
    return pickle.dumps({"a": value}, protocol=2)
