"""Staging: restore completely into a private directory, then move the files to the user's directory."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chockstone.checkpoints.errors import LocalResourceError
from chockstone.checkpoints.stores.posix import local_errors


class StagingDirectory:
    """A temporary directory, created on the first use of ``name`` and removed with this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None
        self._end: weakref.finalize[..., object] | None = None

    @property
    def name(self) -> str:
        with self._lock:
            if self._path is None:
                with local_errors("cannot make a temporary directory"):
                    self._path = tempfile.mkdtemp(prefix="chockstone-")
                self._end = weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
            return self._path

    def cleanup(self) -> None:
        if self._end is not None:
            self._end()


@contextmanager
def staging(target: Path, spare: Path) -> Iterator[Path]:
    """Yield an empty directory, if possible on the file system of ``target``, and remove it afterwards.

    A killed process leaves it behind, but never inside ``target``.
    """
    directory = _make(target, spare)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make(target: Path, spare: Path) -> Path:
    with local_errors(f"cannot restore to {str(target)!r}"):
        if os.stat(target).st_dev != os.stat(spare).st_dev:
            with suppress(PermissionError):
                return Path(tempfile.mkdtemp(prefix=f".{target.name}.restore-", dir=target.parent))
        return Path(tempfile.mkdtemp(prefix="restore-", dir=spare))


def move_into(staged: Path, target: Path) -> None:
    """Move all files into ``target``, replacing files of the same names and keeping all others."""
    try:
        _merge(staged, target)
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise LocalResourceError(
            f"cannot restore to {str(target)!r}: at {error.filename!r} there is a folder for a file, or the other way "
            "round; restore to an empty directory"
        ) from error
    except OSError as error:
        with local_errors(f"cannot restore to {str(target)!r}"):
            raise error


def _merge(folder: Path, target: Path) -> None:
    with os.scandir(folder) as items:
        for item in sorted(items, key=lambda each: each.name):
            place = target / item.name
            if not item.is_dir(follow_symlinks=False):
                _replace(Path(item.path), place)
            elif place.is_dir() or not _renamed(Path(item.path), place):
                place.mkdir(exist_ok=True)
                _merge(Path(item.path), place)


def _renamed(folder: Path, place: Path) -> bool:
    try:
        os.rename(folder, place)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise
    return True


def _replace(file: Path, place: Path) -> None:
    try:
        os.replace(file, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = place.with_name(f".{place.name[:100]}.{secrets.token_hex(4)}.partial")
        try:
            shutil.copyfile(file, beside)
            os.replace(beside, place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
