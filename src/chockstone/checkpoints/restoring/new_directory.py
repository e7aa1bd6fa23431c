"""New directories: filled under a temporary name, then renamed, so that they appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.stores.posix import explained, fsync_directory, move_if_absent


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yields an empty directory to fill, which becomes ``directory``: that must not exist, its parent must.

    The caller makes its content durable. Raises ExportRefused or a StoreError with nothing left
    behind; a killed process leaves a ``.export-….partial`` beside, and never a part of ``directory``.
    """
    target = directory.absolute()
    if target.name in ("", ".."):
        raise ExportRefused(f"{str(directory)!r} cannot be a new directory; give it a name of its own")
    if os.path.lexists(target):  # spares the write; the rename at the end decides all the same
        raise _exists(target)
    partial = target.parent / f".export-{secrets.token_hex(8)}.partial"
    with explained(f"cannot export to {target}"):
        try:  # from here on: Ctrl-C may come as soon as there is something to remove
            _make(partial)
            yield partial
            _publish(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        fsync_directory(target.parent)


def _make(partial: Path) -> None:
    try:
        os.mkdir(partial)
    except FileNotFoundError:
        raise ExportRefused(f"there is no directory {str(partial.parent)!r} to export into; make it first") from None


def _publish(partial: Path, target: Path) -> None:
    try:
        move_if_absent(partial, target)  # directories have no hard links, so this is renameat2
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
        _publish_over_claim(partial, target)


def _publish_over_claim(partial: Path, target: Path) -> None:
    """For file systems that cannot rename without replacing: claim the name empty, then replace that."""
    try:
        os.mkdir(target)
    except FileExistsError:
        raise _exists(target) from None
    try:
        os.rename(partial, target)
    except BaseException:
        os.rmdir(target)
        raise


def _exists(target: Path) -> ExportRefused:
    return ExportRefused(f"{str(target)!r} exists already; name a directory that does not, or remove it first")
