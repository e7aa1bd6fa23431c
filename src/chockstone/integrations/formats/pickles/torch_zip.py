"""Zips of ``torch.save``: the records of one, found in mapped memory, and the value that they hold.

``torch.save`` never compresses, so no record may be larger than it is on disk, and none may overlap another. The bytes
of tensors are views of the memory.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any, Final, NamedTuple

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.integrations.formats.pickles.torch_names import StoredTensors, torch_names
from chockstone.integrations.formats.pickles.unpickler import ForeignNames, PlainUnpickler

ZIP_MAGIC: Final = b"PK\x03\x04"
PICKLE: Final = "data.pkl"
MAX_PICKLE_BYTES: Final = 256 * 1024**2
_HEAD_BYTES: Final = 30  # of a record, before its name
_NAMED: Final = 5  # classes that a message names
_ADVICE: Final = (
    "Nothing of it was run or stored. If you trust the file, load it once with torch.load(weights_only=False), and "
    "save only tensors, numbers, strings, lists and dicts"
)


class ZipRecord(NamedTuple):
    """Where the bytes of a record of a zip are in its memory."""

    start: int
    size: int


def find_records(name: str, memory: Bytes) -> dict[str, ZipRecord]:
    """The records by name. All are stored as they are, inside the memory, and apart from each other."""
    try:
        with zipfile.ZipFile(io.BufferedReader(_Window(memory))) as directory:
            infos = directory.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise damaged(name, f"its directory cannot be read ({error})") from error
    found: dict[str, ZipRecord] = {}
    for info in infos:
        start = info.header_offset
        head = memory[start : start + _HEAD_BYTES].tobytes() if start >= 0 else b""
        if len(head) < _HEAD_BYTES or not head.startswith(ZIP_MAGIC):
            raise damaged(name, f"record {info.filename[:100]!r} is not where the directory says")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise ImportRefused(
                f"{name!r} is not a file of torch.save: record {info.filename[:100]!r} is compressed or encrypted, "
                f"{info.compress_size:,} bytes for {info.file_size:,}. Nothing was read or stored"
            )
        start += _HEAD_BYTES + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if info.filename in found or start + info.file_size > len(memory):
            raise damaged(name, f"record {info.filename[:100]!r} appears twice or ends outside the file")
        found[info.filename] = ZipRecord(start, info.file_size)
    end = 0
    for record in sorted(found.values()):
        if record.start < end:
            raise damaged(name, "its records overlap")
        end = record.start + record.size
    return found


class TorchZip:
    """One zip of ``torch.save``. Raises ImportRefused if it is none, or a sound one of something else."""

    def __init__(self, name: str, memory: Bytes) -> None:
        """``name``: what messages call it. ``memory``: all bytes of the zip."""
        self._name = name
        self._memory = memory
        self._records = find_records(name, memory)
        self._folder = _folder(name, self._records)

    def load(self) -> Any:  # Any: whatever was saved, with stand-ins for arrays of numpy
        """The value, with tensors that are views of the memory, where that is aligned."""
        if self.read("byteorder") not in (None, b"little"):
            raise ImportRefused(
                f"{self._name!r} was written on a big-endian machine. Load it with torch.load, save it again, and "
                "import that file"
            )
        tensors = StoredTensors(self._storage)
        return load_pickle(self._name, self.read(PICKLE) or b"", tensors)

    def read(self, record: str) -> bytes | None:
        """A record other than tensor data; None if there is none of that name."""
        found = self._records.get(self._folder + record)
        if found is None:
            return None
        if found.size > MAX_PICKLE_BYTES:
            raise ImportRefused(
                f"the values of {self._name!r} that are no tensors take {found.size:,} bytes, over the limit of "
                f"{MAX_PICKLE_BYTES:,}. Keep large sequences as tensors"
            )
        return self._memory[found.start : found.start + found.size].tobytes()

    def _storage(self, key: str, size: int) -> Bytes:
        record = self._records.get(f"{self._folder}data/{key}")
        if record is None:
            raise damaged(self._name, f"tensor data {key[:40]!r} is missing")
        if record.size != size:
            raise damaged(self._name, f"tensor data {key[:40]!r} has {record.size:,} bytes where {size:,} are due")
        return self._memory[record.start : record.start + size]


def load_pickle(name: str, content: bytes | io.BytesIO, tensors: StoredTensors) -> Any:
    """The value of a pickle of torch. Raises ImportRefused, whatever the pickle is."""
    try:
        return PlainUnpickler(content, torch_names(tensors), tensors.storage).load()
    except ImportRefused:
        raise
    except ForeignNames as error:
        raise ImportRefused(
            f"{name!r} holds something other than tensors and plain values: {', '.join(error.names[:_NAMED])}. "
            f"{_ADVICE}"
        ) from error
    except Exception as error:  # whatever a hostile pickle can provoke; kept as the cause
        raise damaged(name, f"{type(error).__name__}: {str(error)[:200]}") from error


def damaged(name: str, why: str) -> ImportRefused:
    return ImportRefused(
        f"{name!r} is not a sound file of torch.save: {why}. Nothing was stored; copy the file again, or import an "
        "older checkpoint"
    )


def _folder(name: str, records: dict[str, ZipRecord]) -> str:
    """The folder in the zip that holds everything, with its slash."""
    folders = [each.removesuffix(PICKLE) for each in records if each.endswith(f"/{PICKLE}") and each.count("/") == 1]
    if len(folders) != 1:
        raise ImportRefused(f"{name!r} is a zip file, but not one of torch.save: it has no {PICKLE!r}")
    if f"{folders[0]}constants.pkl" in records:
        raise ImportRefused(
            f"{name!r} is a TorchScript program, not a checkpoint. Save `module.state_dict()` with torch.save"
        )
    return folders[0]


class _Window(io.RawIOBase):
    """Bytes in memory as a file, not copied."""

    def __init__(self, memory: Bytes) -> None:
        self._content = memory.data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._content)}[whence]
        if base + offset < 0:
            raise OSError(f"position {base + offset} is before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # Any: a writable buffer
        taken = self._content[self._position : self._position + len(buffer)]
        buffer[: len(taken)] = taken
        self._position += len(taken)
        return len(taken)
