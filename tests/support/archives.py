"""Small archives made the way users make them, and the plain means to look at and compare them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chockstone.checkpoints import Archive, Checkpointer, open_store, verify_archive
from chockstone.checkpoints.errors import TruncatedArchive
from chockstone.checkpoints.reading.archive import Verify
from chockstone.checkpoints.restoring.restore import load_state
from support.tensors import torch

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class BytesSource:
    """An archive in memory: what a file store offers, for tests that open thousands."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._content = memoryview(content)
        self.reads: list[tuple[int, int]] = []  # (offset, size), in order
        self.closed = False

    @property
    def size(self) -> int:
        return len(self._content)

    @property
    def run_bytes(self) -> int:
        return 1024 * 1024

    @property
    def readers(self) -> int:
        return 2

    def read_into(self, offset: int, target: memoryview) -> None:
        self.reads.append((offset, len(target)))
        if offset + len(target) > len(self._content):
            raise TruncatedArchive("the bytes end while they are being read", where=offset)
        target[:] = self._content[offset : offset + len(target)]

    def map(self) -> memoryview | None:
        return None

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed = True


def small_state() -> dict[str, Any]:
    """A model, an optimizer's moments and plain values; every member ends in the middle of a page."""
    if torch is None:
        weight, bias, moment = (np.random.default_rng(7).standard_normal(91, np.float32) for _ in range(3))
        weight, bias, moment, step = weight.reshape(13, 7), bias[:7], moment.reshape(13, 7), np.float32(3.0)
    else:
        generator = torch.Generator().manual_seed(7)
        weight, bias, moment = (torch.randn(shape, generator=generator) for shape in ((13, 7), (7,), (13, 7)))
        step = torch.tensor(3.0)
    return {
        "model": OrderedDict(weight=weight, bias=bias, head=weight),
        "optimizer": {
            "state": {0: {"step": step, "exp_avg": moment}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}],
        },
        "epoch": 3,
    }


def write_archive(root: Path, state: Mapping[str, object] | None = None, *, step: int = 1, **options: Any) -> Path:
    """Save through the public door; returns the file."""
    with Checkpointer(root, now=lambda: NOON) as checkpointer:
        saved = checkpointer.save(small_state() if state is None else state, step=step, **options).result()
    return root / f"{saved.name}.tar"


def open_file(path: Path, *, verify: Verify = "full") -> Archive:
    return Archive(open_store(path.parent).open(path.name.removesuffix(".tar")), verify=verify)


def load_bytes(content: bytes | bytearray, *, verify: Verify = "full") -> dict[str, Any]:
    """The state of an archive in memory, every digest of it checked."""
    with Archive(BytesSource(content), verify=verify) as archive:
        state = load_state(archive)
        verify_archive(archive)
        return state


def assert_same(found: Any, wanted: Any, path: str = "state") -> None:
    """Equal to the bit and to the type, all the way down. Strides and ``requires_grad`` do not count."""
    if torch is not None and isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{path}: {type(found)}"
        assert found.dtype == wanted.dtype, f"{path}: {found.dtype}"
        assert found.shape == wanted.shape, f"{path}: {found.shape}"
        assert _bits(found) == _bits(wanted), f"{path}: other bits"
        return
    assert type(found) is type(wanted), f"{path}: {type(found)} and not {type(wanted)}"
    if isinstance(wanted, np.ndarray | np.generic):
        assert found.dtype == wanted.dtype, f"{path}: {found.dtype}"
        assert found.shape == wanted.shape, f"{path}: {found.shape}"
        assert found.tobytes() == wanted.tobytes(), f"{path}: other bits"
    elif isinstance(wanted, dict):
        assert list(map(repr, found)) == list(map(repr, wanted)), f"{path}: other keys"
        for (key, item), wanted_item in zip(found.items(), wanted.values(), strict=True):
            assert_same(item, wanted_item, f"{path}[{key!r}]")
        assert_same(getattr(found, "_metadata", None), getattr(wanted, "_metadata", None), f"{path}._metadata")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), f"{path}: {len(found)} items"
        for index, (item, wanted_item) in enumerate(zip(found, wanted, strict=True)):
            assert_same(item, wanted_item, f"{path}[{index}]")
    elif isinstance(wanted, set | frozenset):
        assert sorted(map(repr, found)) == sorted(map(repr, wanted)), f"{path}: other members"
    elif isinstance(wanted, float):
        same = math.isnan(found) if math.isnan(wanted) else repr(found) == repr(wanted)  # repr tells -0.0 from 0.0
        assert same, f"{path}: {found!r}"
    else:
        assert repr(found) == repr(wanted), f"{path}: {found!r}"


def _bits(tensor: Any) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
