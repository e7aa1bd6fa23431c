"""Orbax directories: trees of arrays that JAX programs saved, read by orbax itself as numpy arrays.

Orbax stores no pickles: arrays are chunks of tensorstore, the tree is JSON. The arrays are read into memory; orbax
compresses them, so they cannot be mapped.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import ImportRefused
from chockstone.extras import require
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, LeftOut
from chockstone.integrations.formats.reading.limits import StateLimits
from chockstone.integrations.formats.reading.mapped_files import SourceDirectory
from chockstone.integrations.formats.reading.parts import account, find_step, find_step_in_name

TREE_METADATA: Final = "_METADATA"  # of one tree
_LARGEST_ITEM: Final = 16  # bytes
STEP_METADATA: Final = "_CHECKPOINT_METADATA"  # of a step, which may hold several trees


def read_orbax(directory: SourceDirectory) -> ForeignCheckpoint:
    """One tree, or a step of a CheckpointManager with its trees by name. Raises ImportRefused."""
    require("orbax", f"the import of {directory.name!r}")
    size_bytes = _check_files(directory.path)
    trees = _find_trees(directory)
    limits = StateLimits(directory.name, size_bytes)
    state: dict[str, Any] = {}
    for name, path in trees.items():
        tree = limits.rebuild(_restore(directory.name, path, limits), _plain)
        if name:
            state[name] = tree
        else:
            state = tree if isinstance(tree, dict) else {"value": tree}
    if list(trees) == ["default"]:  # what a CheckpointManager calls its only tree
        state = state["default"]
    others = [name for name in directory.names if not name.startswith("_") and name not in trees]
    left = [] if "" in trees else [LeftOut(name, "not a tree of arrays") for name in others]
    step, step_source = find_step(state)
    if step is None:
        step, step_source = find_step_in_name(directory.name)
    return ForeignCheckpoint(
        "orbax",
        TREE_METADATA if "" in trees else STEP_METADATA,
        state,
        account(state, ", ".join(filter(None, trees)) or TREE_METADATA),
        tuple(left),
        step=step,
        step_source=step_source,
    )


def is_orbax(directory: SourceDirectory) -> bool:
    return TREE_METADATA in directory or STEP_METADATA in directory


def _find_trees(directory: SourceDirectory) -> dict[str, Path]:
    """The trees by name; the one without a name is the directory itself."""
    if TREE_METADATA in directory:
        return {"": directory.path}
    trees = {
        name: directory.path / name for name in directory.names if (directory.path / name / TREE_METADATA).is_file()
    }
    if not trees:
        raise ImportRefused(f"{directory.name!r} has {STEP_METADATA!r}, and no tree of arrays; it is not complete")
    return trees


def _check_files(path: Path) -> int:
    """How many bytes the files have. Raises ImportRefused for links, which orbax would follow."""
    size_bytes = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(folder, name))
            if os.path.islink(os.path.join(folder, name)):
                raise ImportRefused(
                    f"{name!r} in {path.name!r} is a link, and an import reads only the files of the directory itself. "
                    "Copy the checkpoint with its files: `cp -rL SOURCE COPY`"
                )
            size_bytes += status.st_size
    return size_bytes


def _restore(name: str, path: Path, limits: StateLimits) -> Any:
    """The tree at ``path`` with numpy arrays as leaves. ``limits`` judges their sizes before the arrays are made."""
    with _quiet():
        import jax
        import orbax.checkpoint as orbax  # type: ignore[import-untyped]  # it has no types

        try:
            with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as checkpointer:
                tree = checkpointer.metadata(path).item_metadata.tree
                _check_sizes(jax.tree.leaves(tree), limits)
                wanted = jax.tree.map(lambda _: orbax.RestoreArgs(restore_type=np.ndarray), tree)
                return checkpointer.restore(path, args=orbax.args.PyTreeRestore(restore_args=wanted))
        except ImportRefused:
            raise
        except Exception as error:  # orbax and tensorstore raise many kinds; kept as the cause
            raise ImportRefused(
                f"orbax cannot read {name!r}: {type(error).__name__}: {str(error)[:200]}. Copy the checkpoint again, "
                "or import an older one"
            ) from error


def _check_sizes(leaves: list[Any], limits: StateLimits) -> None:
    """Raise ImportRefused if the arrays, or a chunk of one, are too large for the files that they are said to be in."""
    total = 0
    for leaf in leaves:
        shape = getattr(leaf, "shape", None) or ()
        chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
        itemsize = getattr(getattr(leaf, "dtype", None), "itemsize", _LARGEST_ITEM)
        total += itemsize * math.prod(shape)
        limits.claim(max(total, itemsize * math.prod(chunk)))


def _plain(value: Any) -> Any:
    """A leaf of orbax as the tree of an archive holds it. bfloat16 becomes a torch tensor: numpy has no such type."""
    if not isinstance(value, np.ndarray) or value.dtype.isbuiltin == 1:
        return value
    if value.dtype.name != "bfloat16":
        raise ImportRefused(f"an array of {value.dtype.name} cannot be imported; cast it to a type that numpy has")
    require("torch", "an array of bfloat16")
    import torch

    return torch.from_numpy(np.ascontiguousarray(value).view(np.uint16).copy()).view(torch.bfloat16).view(value.shape)


@contextmanager
def _quiet() -> Iterator[None]:
    """Orbax and JAX write log lines of their own, which are of no use to the reader of a command's output."""
    loggers = [logging.getLogger(name) for name in ("absl", "jax", "orbax")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
