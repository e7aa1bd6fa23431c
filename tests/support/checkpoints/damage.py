"""Damage done to archives of a checkpointer."""

from __future__ import annotations

from pathlib import Path

from chockstone.checkpoints import Archive, Checkpointer
from support.tensors import full


def first_tensor(checkpointer: Checkpointer, name: str) -> int:
    with Archive(checkpointer.store.open(name)) as archive:
        return next(archive.all_tensors()).offset


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def save_three(checkpointer: Checkpointer) -> None:
    for step in range(3):
        checkpointer.save({"x": full(1000, float(step))}, step=step).result()


def partials(root: Path) -> list[Path]:
    directory = root / ".partial"
    return list(directory.iterdir()) if directory.is_dir() else []
