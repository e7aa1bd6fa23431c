"""Recognition: which program wrote a file or a directory, by its content, and the reader for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from chockstone.checkpoints.errors import ImportRefused
from chockstone.integrations.formats.pickles.torch_zip import ZIP_MAGIC
from chockstone.integrations.formats.reading.dcp_directory import METADATA
from chockstone.integrations.formats.reading.directories import read_dcp, read_safetensors_directory
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, FormatName
from chockstone.integrations.formats.reading.hf_directory import ADAPTER, TRAINER_STATE, read_hf
from chockstone.integrations.formats.reading.mapped_files import MappedFile, SourceDirectory, resolve
from chockstone.integrations.formats.reading.orbax_directory import is_orbax, read_orbax
from chockstone.integrations.formats.reading.parts import find_step_in_name
from chockstone.integrations.formats.reading.safetensors_files import is_safetensors
from chockstone.integrations.formats.reading.single_files import read_lightning, read_one_safetensors, read_torch
from chockstone.integrations.formats.reading.torch_file import LEGACY_MAGIC, is_torch_zip

FORMATS: Final = get_args(FormatName)
_SUFFIXES: Final = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_TAR_MAGIC: Final = (257, b"ustar")
_OTHERS: Final = {
    b"\x89HDF": "an HDF5 file, as Keras writes. Save the weights as safetensors, and import that file",
    b"GGUF": "a GGUF file, which holds weights for inference only. Import the model that it was made from",
    b"\x80": "a plain pickle, which runs code of the file when it is read. Save its content with torch.save",
}
_FILE_READERS: Final[dict[FormatName, Callable[[MappedFile], ForeignCheckpoint]]] = {
    "torch": read_torch,
    "lightning": read_lightning,
    "safetensors": read_one_safetensors,
}
_DIRECTORY_READERS: Final[dict[FormatName, Callable[[SourceDirectory], ForeignCheckpoint]]] = {
    "safetensors": read_safetensors_directory,
    "dcp": read_dcp,
    "hf": read_hf,
    "orbax": read_orbax,
}


class SeveralCheckpoints(ImportRefused):
    """A directory holds several checkpoints; ``names`` are those of its entries."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def read_foreign(path: Path, source_format: FormatName | None = None) -> ForeignCheckpoint:
    """The checkpoint at ``path``, opened and checked; without a format, it is recognised by its content.

    Nothing of the source is changed or run. Raises ImportRefused, and SeveralCheckpoints for a directory of them.
    """
    found = resolve(path)
    if found.is_dir():
        directory = SourceDirectory(found)
        wanted = source_format or _recognise_directory(directory)
        if wanted not in _DIRECTORY_READERS:
            raise ImportRefused(f"{directory.name!r} is a directory, and {wanted!r} is a format of single files")
        return _DIRECTORY_READERS[wanted](directory)
    file = MappedFile.open(found)
    wanted = source_format or _recognise_file(file)
    if wanted not in _FILE_READERS:
        raise ImportRefused(f"{file.name!r} is a file, and {wanted!r} is a format of directories")
    return _FILE_READERS[wanted](file)


def find_checkpoints(path: Path) -> list[Path]:
    """The checkpoints in a directory of several, by rising step, then by name. Links are left out."""
    directory = SourceDirectory(resolve(path))
    entries = [directory.path / name for name in _entries(directory)]
    return sorted(entries, key=lambda entry: (find_step_in_name(entry.name)[0] or 0, entry.name))


def _recognise_file(file: MappedFile) -> FormatName:
    if file.read(0, len(ZIP_MAGIC)) == ZIP_MAGIC and is_torch_zip(file):
        return "torch"
    if file.read(0, len(LEGACY_MAGIC)) == LEGACY_MAGIC:
        return "torch"
    if is_safetensors(file):
        return "safetensors"
    offset, magic = _TAR_MAGIC
    if file.read(offset, len(magic)) == magic:
        raise ImportRefused(
            f"{file.name!r} is a tar. An archive of Chockstone needs no import: copy it into the store. Unpack another "
            "tar first"
        )
    for start, what in _OTHERS.items():
        if file.read(0, len(start)) == start:
            raise ImportRefused(f"{file.name!r} is {what}")
    raise ImportRefused(
        f"{file.name!r} is not a checkpoint of a known format ({', '.join(FORMATS)}), or it is damaged: its first "
        f"bytes are {file.read(0, 8)!r}"
    )


def _recognise_directory(directory: SourceDirectory) -> FormatName:
    if METADATA in directory:
        return "dcp"
    if TRAINER_STATE in directory or f"{ADAPTER}.safetensors" in directory:
        return "hf"
    if is_orbax(directory):
        return "orbax"
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in directory.names):
        return "safetensors"
    if any(name.startswith("pytorch_model.bin") for name in directory.names):
        return "hf"
    if names := _entries(directory):
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise SeveralCheckpoints(
            f"{directory.name!r} holds {len(names)} checkpoints ({shown}). Name one of them, or pass --all",
            tuple(names),
        )
    shown = ", ".join(directory.names[:6]) or "nothing"
    raise ImportRefused(f"{directory.name!r} is not a checkpoint of a known format: it holds {shown[:200]}")


def _entries(directory: SourceDirectory) -> list[str]:
    """Names in a directory that look like checkpoints: folders with a step, and files of known formats."""
    found: list[str] = []
    for name in directory.names:
        path = directory.path / name
        is_step = find_step_in_name(name)[0] is not None and path.is_dir() and bool(os.listdir(path))
        if not path.is_symlink() and (is_step or (path.is_file() and name.endswith(_SUFFIXES))):
            found.append(name)
    return found
