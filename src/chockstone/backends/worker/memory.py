"""Memory: how much a worker process uses, for its heartbeats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from chockstone.backends.planning.refusals import available_bytes, held_memory
from chockstone.backends.protocol import GpuMemory, WorkerMemory
from chockstone.backends.training.base_model import BaseModel
from chockstone.backends.training.run import TrainedRun

_PAGES: Final = Path("/proc/self/statm")  # its second number is the resident memory, in pages


def memory_of_worker(bases: Mapping[str, BaseModel], runs: Mapping[str, TrainedRun]) -> WorkerMemory:
    """For any thread: it copies the mappings before it walks through them."""
    present = list(bases.values())
    free_bytes = available_bytes(present[0].device) if present else None
    return replace(memory_in_use(), held=held_memory(present, list(runs.values()), free_bytes=free_bytes))


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
