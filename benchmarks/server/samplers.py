"""Samplers: what the contestants of the measure ``decoding`` are: a function that samples, and says what that took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.live.client import sample_all, session
from benchmarks.live.models import Tokens


@dataclass(frozen=True, slots=True)
class Work:
    """What one turn did."""

    tokens: int
    seconds: float
    cpu_seconds: float


Sample = Callable[[list[Tokens], int], Work]
"""Samples as many tokens of each prompt."""


@contextmanager
def sampling_by_sdk(url: str, base_model: str, server: psutil.Process) -> Iterator[Sample]:
    """Of any server with the Tinker API; ``server`` and its children count with this process."""
    with session(url) as service:
        sampler = service.create_sampling_client(base_model=base_model)

        def sample(prompts: list[Tokens], tokens: int) -> Work:
            cpu, started = cpu_seconds(server), time.perf_counter()
            count = sample_all(sampler, prompts, samples=1, max_tokens=tokens)
            return Work(count, time.perf_counter() - started, cpu_seconds(server) - cpu)

        yield sample


def cpu_seconds(server: psutil.Process) -> float:
    """Of this process, the server and the server's children."""
    used = 0.0
    for process in (psutil.Process(), server, *server.children(recursive=True)):
        times = process.cpu_times()
        used += times.user + times.system
    return used
