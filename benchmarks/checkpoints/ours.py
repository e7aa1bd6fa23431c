"""Ours: the one file that knows ``chockstone.checkpoints``.

It needs ``Checkpointer(root, prefix=…)`` with ``save(tree, step=…)`` giving a handle with ``result()``,
``restore(into=…, name=…, verify="full")`` filling tensors in place, and ``close()``; archives lie at
``<root>/<prefix>/step-<eight digits>.tar``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from benchmarks.checkpoints.contestant import Contestant
from benchmarks.checkpoints.states import State

NAME = "chockstone"
PREFIX = "ours"


def contestant(directory: Path) -> Contestant:
    """One checkpointer for all saves of a state, as a training loop has; its host buffer is reused.

    Raises ImportError where the library is not installed.
    """
    from chockstone.checkpoints import Checkpointer

    checkpointer = Checkpointer(f"file://{directory.resolve()}", prefix=PREFIX)
    steps = count(1)

    def start(state: State) -> Callable[[], Path]:
        step = next(steps)
        handle = checkpointer.save(state.tree, step=step)

        def wait() -> Path:
            handle.result()
            return _archive_path(directory, step)

        return wait

    def save(state: State) -> Path:
        return start(state)()

    def restore(path: Path, into: State) -> None:
        checkpointer.restore(into=into.tree, name=path.stem, verify="full")

    return Contestant(NAME, save=save, start=start, restore=restore, close=checkpointer.close)


def _archive_path(directory: Path, step: int) -> Path:
    path = directory / PREFIX / f"step-{step:08d}.tar"
    if not path.is_file():
        raise FileNotFoundError(f"the saved archive is not at {str(path)!r}, where the benchmark expects it")
    return path
