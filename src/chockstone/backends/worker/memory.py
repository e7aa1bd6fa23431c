"""Memory: how much a worker process uses, for its heartbeats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from chockstone.backends.protocol import GpuMemory, WorkerMemory

_PAGES: Final = Path("/proc/self/statm")  # its second number is the resident memory, in pages


def memory_in_use() -> WorkerMemory:
    """Does not start CUDA: a worker on the CPU reports no GPU."""
    return WorkerMemory(resident_bytes(_PAGES), _gpus() if torch.cuda.is_initialized() else ())  # type: ignore[no-untyped-call]  # of torch


def resident_bytes(pages: Path) -> int | None:
    try:
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _gpus() -> tuple[GpuMemory, ...]:
    found = []
    try:
        for number in range(torch.cuda.device_count()):
            free_bytes, total_bytes = torch.cuda.mem_get_info(number)
            found.append(GpuMemory(torch.cuda.get_device_name(number), total_bytes - free_bytes, total_bytes))
    except RuntimeError:  # the call in progress reports a broken device; a heartbeat must not end because of it
        return ()
    return tuple(found)
