"""Torch files: what ``torch.save`` wrote, read without running code of the file and with its tensors mapped.

torch's own restricted unpickler, the one behind ``weights_only=True``, reads the structure. The bytes of the tensors
are views of the mapped file, and each must be exactly as long as the structure says. The zip's directory is checked
first: ``torch.save`` never compresses, so no record may be larger than it is on disk.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from chockstone.checkpoints.errors import ImportRefused
from chockstone.extras import require
from chockstone.integrations.formats.reading.limits import StateLimits
from chockstone.integrations.formats.reading.mapped_files import MappedFile
from chockstone.integrations.formats.reading.pickled_arrays import STAND_INS, resolve_arrays

ZIP_MAGIC: Final = b"PK\x03\x04"
LEGACY_MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save before 1.6
_PICKLE: Final = "data.pkl"
_HEAD_BYTES: Final = 30  # of a record, before its name
_MAX_PICKLE_BYTES: Final = 256 * 1024**2
_NAMED: Final = 5  # classes that a message names
_ADVICE: Final = (
    "Nothing of it was run or stored. If you trust the file, load it once with torch.load(weights_only=False), and "
    "save only tensors, numbers, strings, lists and dicts"
)


class ZipRecord(NamedTuple):
    """Where the bytes of a record of a zip are in its file."""

    start: int
    size: int


def read_torch_file(file: MappedFile) -> Any:  # Any: whatever was saved
    """The object that ``torch.save`` wrote, on the CPU. Raises ImportRefused."""
    require("torch", f"the import of {file.name!r}")
    limits = StateLimits(file.name, file.size)
    if file.read(0, len(LEGACY_MAGIC)) == LEGACY_MAGIC:
        return limits.rebuild(_read_legacy(file), resolve_arrays)
    records = _find_records(file)
    return limits.rebuild(_TorchZip(file, records).load(), resolve_arrays)


def read_record(file: MappedFile, name: str) -> bytes | None:
    """A record that torch does not know, beside its own; None if the file has none of that name."""
    if file.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        return None
    records = _find_records(file)
    record = records.get(_folder(file, records) + name)
    return None if record is None else file.read(*record)


def is_torch_zip(file: MappedFile) -> bool:
    """Whether a zip is one of ``torch.save``. Raises ImportRefused if it is not a sound zip."""
    return any(name.count("/") == 1 and name.endswith(f"/{_PICKLE}") for name in _find_records(file))


def _find_records(file: MappedFile) -> dict[str, ZipRecord]:
    """The records by name. All are stored as they are, inside the file, and apart from each other."""
    try:
        file.mapping.seek(0)
        with zipfile.ZipFile(file.mapping) as directory:  # type: ignore[call-overload]  # a mapping reads like a file
            infos = directory.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise _damaged(file, f"its directory cannot be read ({error})") from error
    found: dict[str, ZipRecord] = {}
    for info in infos:
        head = file.read(info.header_offset, _HEAD_BYTES) if info.header_offset >= 0 else b""
        if len(head) < _HEAD_BYTES or not head.startswith(ZIP_MAGIC):
            raise _damaged(file, f"record {info.filename[:100]!r} is not where the directory says")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise ImportRefused(
                f"{file.name!r} is not a file of torch.save: record {info.filename[:100]!r} is compressed or "
                f"encrypted, {info.compress_size:,} bytes for {info.file_size:,}. Nothing was read or stored"
            )
        start = info.header_offset + _HEAD_BYTES + int.from_bytes(head[26:28], "little")
        start += int.from_bytes(head[28:30], "little")
        if info.filename in found or start + info.file_size > file.size:
            raise _damaged(file, f"record {info.filename[:100]!r} appears twice or ends outside the file")
        found[info.filename] = ZipRecord(start, info.file_size)
    end = 0
    for record in sorted(found.values()):
        if record.start < end:
            raise _damaged(file, "its records overlap")
        end = record.start + record.size
    return found


def _folder(file: MappedFile, records: dict[str, ZipRecord]) -> str:
    """The folder in the zip that holds everything, with its slash."""
    folders = [name.removesuffix(_PICKLE) for name in records if name.endswith(f"/{_PICKLE}") and name.count("/") == 1]
    if len(folders) != 1:
        raise ImportRefused(f"{file.name!r} is a zip file, but not one of torch.save: it has no {_PICKLE!r}")
    if f"{folders[0]}constants.pkl" in records:
        raise ImportRefused(
            f"{file.name!r} is a TorchScript program, not a checkpoint. Save `module.state_dict()` with torch.save"
        )
    return folders[0]


class _TorchZip:
    """Reads one zip of ``torch.save``."""

    def __init__(self, file: MappedFile, records: dict[str, ZipRecord]) -> None:
        self._file = file
        self._records = records
        self._folder = _folder(file, records)
        self._storages: dict[str, Any] = {}

    def load(self) -> Any:
        from torch._weights_only_unpickler import Unpickler

        storage = self._storage

        class StorageUnpickler(Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                return storage(pid)

        order = self._records.get(f"{self._folder}byteorder")
        if order is not None and self._file.read(*order) != b"little":
            raise ImportRefused(
                f"{self._file.name!r} was written on a big-endian machine. Load it with torch.load, save it again, and "
                "import that file"
            )
        pickled = self._records[self._folder + _PICKLE]
        if pickled.size > _MAX_PICKLE_BYTES:
            raise ImportRefused(
                f"the values of {self._file.name!r} that are no tensors take {pickled.size:,} bytes, over the limit of "
                f"{_MAX_PICKLE_BYTES:,}. Keep large sequences as tensors"
            )
        unpickler = StorageUnpickler(io.BytesIO(self._file.read(*pickled)), encoding="utf-8")
        return _run(self._file, unpickler.load, pickled)

    def _storage(self, wanted: Any) -> Any:
        """The storage that a tensor refers to: a view of its record, which has exactly that size."""
        import torch

        if not (isinstance(wanted, tuple) and len(wanted) == 5):
            raise _damaged(self._file, "a tensor refers to no storage")
        _, kind, key, _, count = wanted
        dtype = torch.uint8 if kind is torch.UntypedStorage else getattr(kind, "dtype", None)
        record = self._records.get(f"{self._folder}data/{key}")
        if not isinstance(dtype, torch.dtype) or type(count) is not int or record is None:
            raise _damaged(self._file, f"tensor data {str(key)[:40]!r} is missing or of no known type")
        if record.size != count * dtype.itemsize:
            raise _damaged(
                self._file, f"tensor data {key!r} has {record.size:,} bytes where {count * dtype.itemsize:,} are due"
            )
        if key not in self._storages:
            content = self._file.memory[record.start : record.start + record.size]
            storage = torch.from_numpy(content).untyped_storage()
            typed: Any = torch.storage.TypedStorage
            self._storages[key] = typed(wrap_storage=storage, dtype=dtype, _internal=True)
        return self._storages[key]


def _read_legacy(file: MappedFile) -> Any:
    """A file of torch before 1.6, which cannot be mapped."""
    import torch

    whole = ZipRecord(0, min(file.size, _MAX_PICKLE_BYTES))
    return _run(file, lambda: torch.load(file.path, map_location="cpu", weights_only=True), whole)


def _run(file: MappedFile, load: Callable[[], Any], pickled: ZipRecord) -> Any:
    """Run torch's restricted unpickler; what it refuses becomes ImportRefused. ``pickled``: where the pickles are."""
    from pickle import UnpicklingError

    import torch

    stand_ins: list[Any] = [(value, name) for name, value in STAND_INS.items()]  # Any: as torch wants it
    try:
        with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other pickle protocols; what cannot be read raises all the same
            return load()
    except ImportRefused:
        raise
    except UnpicklingError as error:
        what = ", ".join(_foreign_names(file.read(*pickled))[:_NAMED]) or str(error)[:200]
        raise ImportRefused(
            f"{file.name!r} holds something other than tensors and plain values: {what}. {_ADVICE}"
        ) from error
    except Exception as error:  # whatever a hostile pickle can provoke; kept as the cause
        raise _damaged(file, f"{type(error).__name__}: {str(error)[:200]}") from error


def _foreign_names(pickles: bytes) -> list[str]:
    """The classes and functions that pickles name and that are not read."""
    from torch import _weights_only_unpickler as unpickling

    named: set[str] = set()
    stream = io.BytesIO(pickles)
    with suppress(Exception):  # what follows the last pickle, or damage, names nothing
        while True:
            named |= unpickling.get_globals_in_pkl(stream)
    return sorted(named - set(unpickling._get_allowed_globals()) - set(STAND_INS))


def _damaged(file: MappedFile, why: str) -> ImportRefused:
    return ImportRefused(
        f"{file.name!r} is not a sound file of torch.save: {why}. Nothing was stored; copy the file again, or import "
        "an older checkpoint"
    )
