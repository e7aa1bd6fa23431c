"""Checkpoint folders: a directory whose archives have the file names that Lightning gives them.

Lightning looks at its checkpoints by path: whether one exists, which is the last, what a link points to. So an archive
is the file at that path, such as ``epoch=3-step=400.ckpt``. In a store it needs a name of letters, digits, ``.``, ``_``
and ``-``. Other characters are spelled there as ``_3D``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from chockstone.checkpoints.stores.file_store import PARTIAL, FileStore
from chockstone.checkpoints.stores.posix import explain
from chockstone.checkpoints.stores.store import StoreEntry, check_name

_ZIP: Final = b"PK\x03\x04"  # how files of torch.save begin
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_SPELLED = re.compile(rb"_([0-9A-F]{2})")


def name_of(filename: str) -> str:
    """The name of a file's archive in the store of its folder."""
    plain = "".join(each if _PLAIN.match(each) else _spell(each) for each in filename)
    return f"_2E{plain[1:]}" if plain.startswith(".") else plain


def filename_of(name: str) -> str:
    return _SPELLED.sub(lambda found: bytes([int(found[1], 16)]), name.encode()).decode("utf-8", "surrogateescape")


class CheckpointFolder(FileStore):
    """A store of one directory without its subdirectories, where each archive has its own file name."""

    def __init__(self, root: Path, *, suffix: str = ".ckpt") -> None:
        """``suffix``: of the files that are listed."""
        super().__init__(root)
        self._suffix = suffix

    def path(self, name: str) -> Path:
        check_name(name)
        return self.root / filename_of(name)

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        """Files with the suffix, besides files of ``torch.save``. ``prefix`` must be empty."""
        if prefix:
            raise ValueError(f"prefix={prefix!r}: a checkpoint folder has no prefixes")
        try:
            with os.scandir(self.root) as items:
                names = sorted(item.name for item in items if item.name.endswith(self._suffix))
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            raise explain(error, f"cannot list {self.root}") from error
        found = [entry for name in names if not is_torch_file(self.root / name) for entry in self._entry(name_of(name))]
        return iter(sorted(found, key=lambda entry: entry.name))

    def tidy(self) -> None:
        """Remove the directory of partial files if it is empty, so that the folder shows checkpoints only."""
        with suppress(OSError):
            os.rmdir(self.root / PARTIAL)


def is_torch_file(path: Path) -> bool:
    """Whether a file was written by ``torch.save``."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False


def _spell(character: str) -> str:
    return "".join(f"_{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
