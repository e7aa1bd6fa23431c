from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chockstone.backends.protocol import GpuMemory
from chockstone.backends.worker.memory import memory_in_use, resident_bytes


def test_the_resident_memory_of_this_process_is_reported() -> None:
    before = memory_in_use().resident_bytes
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])

    after = memory_in_use().resident_bytes

    assert before is not None and after is not None
    assert after - before >= 32 << 20
    assert memory_in_use().gpus == (), "CUDA is not started for a heartbeat"


@pytest.mark.parametrize("content", [None, "", "1", "a b c"])
def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "statm").write_text(content)

    assert resident_bytes(tmp_path / "statm") is None


def test_the_memory_of_gpus_in_use_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (25, 100))

    assert memory_in_use().gpus == (GpuMemory("GPU", 75, 100),)


def test_a_broken_gpu_does_not_end_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)

    assert memory_in_use().gpus == ()
