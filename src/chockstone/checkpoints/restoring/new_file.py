"""New files: written under a temporary name, then renamed, so that they appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.stores.posix import explained, fsync_directory, move_if_absent


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yields a path to write to, which becomes ``target``: that must not exist, its folder must.

    The file is durable after the block. Raises ExportRefused or a StoreError with nothing left behind.
    """
    if os.path.lexists(target):  # spares the write; the rename at the end decides all the same
        raise ExportRefused(f"{str(target)!r} exists already; name a file that does not, or remove it first")
    if not target.parent.is_dir():
        raise ExportRefused(f"there is no directory {str(target.parent)!r} to export into; make it first")
    partial = target.with_name(f".export-{secrets.token_hex(8)}.partial")
    with explained(f"cannot export to {target}"):
        try:
            yield partial
            sync_file(partial)
            try:
                move_if_absent(partial, target)
            except FileExistsError:
                raise ExportRefused(f"{str(target)!r} was made by another process meanwhile; remove it first") from None
            fsync_directory(target.parent)
        finally:
            partial.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
