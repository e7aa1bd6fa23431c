"""Savers: the ways to save the loop's state, each a coroutine that ends when the checkpoint is durable."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import torch

from benchmarks.checkpoints.durability import fsync_tree
from chockstone.checkpoints import Checkpointer, Retention

from .loop import Loop

OURS = "save_async, in the background"
INLINE = "our save, inline on the loop"
TORCH = "torch.save, inline on the loop"

Saver = Callable[[Loop], Awaitable[None]]


def savers(directory: Path, checkpointer: Checkpointer) -> dict[str, Saver]:
    """The newest checkpoint of each is kept. ``checkpointer`` is for ours alone, both ways."""
    steps = count(1)
    path = directory / "state.pt"

    async def ours(loop: Loop) -> None:
        async with loop.lock:
            handle = await checkpointer.save_async(loop.state.tree, step=next(steps))
        await handle

    async def inline(loop: Loop) -> None:
        async with loop.lock:
            checkpointer.save(loop.state.tree, step=next(steps)).result()

    async def pickled(loop: Loop) -> None:
        async with loop.lock:
            partial = path.with_suffix(".partial")
            torch.save(loop.state.tree, partial)
            fsync_tree(partial)
            os.replace(partial, path)

    return {OURS: ours, INLINE: inline, TORCH: pickled}


def new_checkpointer(directory: Path) -> Checkpointer:
    return Checkpointer(directory, retention=Retention(keep_last=1))
