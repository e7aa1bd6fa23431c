"""Torch files: what ``torch.save`` wrote, read without running code of the file and with its tensors mapped.

Files of torch since 1.6 are zips (``pickles.torch_zip``). Older ones are five pickles, and the bytes of the tensors.
"""

from __future__ import annotations

import io
from typing import Any, Final

from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.extras import require
from chockstone.integrations.formats.pickles.pickled_arrays import resolve_arrays
from chockstone.integrations.formats.pickles.torch_names import StoredTensors
from chockstone.integrations.formats.pickles.torch_zip import (
    MAX_PICKLE_BYTES,
    PICKLE,
    ZIP_MAGIC,
    TorchZip,
    damaged,
    find_records,
    load_pickle,
)
from chockstone.integrations.formats.reading.limits import StateLimits
from chockstone.integrations.formats.reading.mapped_files import MappedFile

LEGACY_MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save before 1.6
_COUNT_BYTES: Final = 8  # before the bytes of each storage of a legacy file: how many elements it has


def read_torch_file(file: MappedFile) -> Any:  # Any: whatever was saved
    """The object that ``torch.save`` wrote, on the CPU. Raises ImportRefused."""
    require("torch", f"the import of {file.name!r}")
    is_legacy = file.read(0, len(LEGACY_MAGIC)) == LEGACY_MAGIC
    loaded = _read_legacy(file) if is_legacy else TorchZip(file.name, file.memory).load()
    return StateLimits(file.name, file.size).rebuild(loaded, resolve_arrays)


def read_record(file: MappedFile, name: str) -> bytes | None:
    """A record that torch does not know, beside its own; None if the file has none of that name."""
    if file.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        return None
    return TorchZip(file.name, file.memory).read(name)


def is_torch_zip(file: MappedFile) -> bool:
    """Whether a zip is one of ``torch.save``. Raises ImportRefused if it is not a sound zip."""
    records = find_records(file.name, file.memory)
    return any(name.count("/") == 1 and name.endswith(f"/{PICKLE}") for name in records)


def _read_legacy(file: MappedFile) -> Any:
    """A file of torch before 1.6: magic, version, machine, value, keys of storages; then the storages in that order.

    The value is read twice: where the storages are is known only from the keys behind it.
    """
    stream = io.BytesIO(file.read(0, MAX_PICKLE_BYTES))
    needed = StoredTensors(None)
    for _ in range(3):
        machine = load_pickle(file.name, stream, needed)
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise damaged(file.name, "it was not written on a little-endian machine")
    start = stream.tell()
    load_pickle(file.name, stream, needed)
    keys = load_pickle(file.name, stream, needed)
    if not isinstance(keys, list) or not all(type(key) is str for key in keys) or sorted(keys) != sorted(needed.sizes):
        raise damaged(file.name, "it does not list its tensor data")
    places, position = {}, stream.tell()
    for key in keys:
        places[key] = position + _COUNT_BYTES
        position = places[key] + needed.sizes[key]
    if position > file.size:
        raise damaged(file.name, "it is shorter than its tensor data")

    def find(key: str, size: int) -> Bytes:
        return file.memory[places[key] : places[key] + size]

    stream.seek(start)
    return load_pickle(file.name, stream, StoredTensors(find))
