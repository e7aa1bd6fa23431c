"""Savers: the ways to save the loop's state, each a coroutine that ends when the checkpoint is durable."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

import torch

from benchmarks.harness.disk import fsync_tree
from chockstone.checkpoints import Checkpointer, Retention

from .loop import Loop

PACE_BYTES_PER_SECOND = 100e6
OURS = f"save_async, at {PACE_BYTES_PER_SECOND / 1e6:.0f} MB/s"
FAST = "save_async, as fast as it goes"
INLINE = "our save, inline on the loop"
TORCH = "torch.save, inline on the loop"

Saver = Callable[[Loop], Awaitable[None]]


def savers(directory: Path, paced: Checkpointer, fast: Checkpointer) -> dict[str, Saver]:
    """The newest checkpoint of each is kept. The checkpointers are for ours alone."""
    steps = count(1)
    path = directory / "state.pt"

    async def ours(checkpointer: Checkpointer, loop: Loop) -> None:
        async with loop.lock:
            handle = await checkpointer.save_async(loop.state.tree, step=next(steps))
        await handle

    async def inline(loop: Loop) -> None:
        async with loop.lock:
            fast.save(loop.state.tree, step=next(steps)).result()

    async def pickled(loop: Loop) -> None:
        async with loop.lock:
            unfinished = path.with_suffix(".partial")
            torch.save(loop.state.tree, unfinished)
            fsync_tree(unfinished)
            os.replace(unfinished, path)

    return {OURS: partial(ours, paced), FAST: partial(ours, fast), INLINE: inline, TORCH: pickled}


def new_checkpointer(directory: Path, *, is_paced: bool) -> Checkpointer:
    pace = PACE_BYTES_PER_SECOND if is_paced else None
    return Checkpointer(directory, retention=Retention(keep_last=1), bytes_per_second=pace)
