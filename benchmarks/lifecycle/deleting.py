"""Deleting: many checkpoints in bulk through the SDK, thirty-two at a time as the ``tinker`` command does."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.lifecycle.filling import fill
from benchmarks.lifecycle.setup import Setup
from benchmarks.live.client import session

AT_ONCE = 32
BULK = "through the SDK, 32 at a time"
BARE = "bare: unlink and fsync of the directory, each"


def measure_deleting(context: Context, setup: Setup) -> Rows:
    context.describe(f"{setup.scale.deleted:,} checkpoints")
    rounds = count()
    with session(setup.server.url) as service, ThreadPoolExecutor(AT_ONCE) as threads:
        rest = service.create_rest_client()
        contestants = {
            BULK: lambda: _delete(setup, rest, threads, session_id=f"deleting-{next(rounds)}"),
            BARE: lambda: _unlink(context.directory / "bare", setup.scale.deleted),
        }
        return context.run_rounds(contestants, repeats=setup.scale.deletions)


def _delete(setup: Setup, rest: tinker.RestClient, threads: ThreadPoolExecutor, *, session_id: str) -> Metrics:
    paths = fill(setup, setup.scale.deleted, session_id=session_id)
    began = time.perf_counter()
    for _ in threads.map(lambda path: rest.delete_checkpoint_from_tinker_path(path).result(), paths):
        pass
    seconds = time.perf_counter() - began
    left = [path for path in setup.server.checkpoints.rglob("*.tar") if path.parts[-3].startswith(session_id)]
    if left:
        raise RuntimeError(f"{len(left)} of {len(paths)} archives are still there after their deletion")
    return {"per_second": len(paths) / seconds}


def _unlink(directory: Path, number: int) -> Metrics:
    directory.mkdir(exist_ok=True)
    original = directory / "original"
    original.write_bytes(bytes(16_384))
    paths = [directory / f"{index}.tar" for index in range(number)]
    for path in paths:
        path.hardlink_to(original)
    descriptor = os.open(directory, os.O_RDONLY)
    began = time.perf_counter()
    for path in paths:
        path.unlink()
        os.fsync(descriptor)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return {"per_second": number / seconds}
