from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from chockstone.backends.training import allocator
from chockstone.backends.training.allocator import returning_memory

BLOCK_BYTES = 2 << 20
BLOCKS = 40


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept_by_the_process() -> int:
    """Bytes that stay resident after blocks were freed between others that were not."""
    before = resident_bytes()
    blocks, others = [], []
    for _ in range(BLOCKS):
        blocks.append(torch.ones(BLOCK_BYTES // 4))
        others.append(torch.ones(20_000))
    assert resident_bytes() - before >= BLOCKS * BLOCK_BYTES // 2
    blocks.clear()
    return resident_bytes() - before - sum(other.nbytes for other in others)


@pytest.mark.skipif(allocator._mallopt() is None, reason="the C library is not glibc")
def test_freed_tensors_go_back_to_the_system() -> None:
    with returning_memory(True):
        kept = kept_by_the_process()

    assert kept < BLOCKS * BLOCK_BYTES // 4


def test_the_usual_limits_are_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(allocator, "_mallopt", lambda: lambda name, value: calls.append((name, value)))

    with pytest.raises(KeyError), returning_memory(True):
        raise KeyError
    with returning_memory(False):
        pass

    assert calls == [(-1, 64 << 20), (-3, 1 << 20), (-3, 32 << 20)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_mallopt", lambda: None)

    with returning_memory(True):
        assert torch.ones(3).sum() == 3
