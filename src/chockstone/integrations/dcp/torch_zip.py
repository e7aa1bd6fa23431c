"""One tensor of ``torch.save``, found in the bytes of its zip and not copied."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import torch

_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # of a zip entry: lengths of its name and of what follows the name
_STORAGES: Final = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}
_UNEXPECTED: Final = (
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)


def map_tensor(item: memoryview) -> torch.Tensor | None:
    """The one plain tensor that this zip holds, as a view of it where its elements are aligned.

    None for anything else: then ``torch.load`` must judge. Runs no code that the zip names.
    """
    try:
        with zipfile.ZipFile(io.BufferedReader(_Window(item))) as archive:
            members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            found = _TensorUnpickler(io.BytesIO(archive.read(members["data.pkl"]))).load()
            byte_order = archive.read(members["byteorder"]) if "byteorder" in members else b"little"
            if not isinstance(found, _Facts) or byte_order != b"little":
                return None
            return _view(item, members[f"data/{found.storage.key}"], found)
    except _UNEXPECTED:
        return None


class _Storage(NamedTuple):
    dtype: torch.dtype
    key: str
    elements: int


class _Facts(NamedTuple):
    storage: _Storage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _view(item: memoryview, entry: zipfile.ZipInfo, facts: _Facts) -> torch.Tensor | None:
    dtype, count = facts.storage.dtype, facts.storage.elements
    size = count * dtype.itemsize
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(item, entry.header_offset)
    start = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    reach = (
        facts.first + 1 + sum((extent - 1) * stride for extent, stride in zip(facts.shape, facts.strides, strict=True))
    )
    is_sound = entry.compress_type == zipfile.ZIP_STORED and entry.file_size == size and start + size <= len(item)
    if not is_sound or min((facts.first, *facts.strides)) < 0 or min(facts.shape, default=1) <= 0 or reach > count:
        return None
    content = torch.frombuffer(item[start : start + size], dtype=torch.uint8)
    if content.data_ptr() % dtype.itemsize:
        content = content.clone()
    return content.view(dtype).as_strided(facts.shape, facts.strides, facts.first)


class _TensorUnpickler(pickle.Unpickler):
    """Reads what ``torch.save`` writes of a plain tensor, and raises UnpicklingError for anything else."""

    def find_class(self, module: str, name: str) -> Any:  # Any: a class, a function or a dtype
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _location, count = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError(str(kind))
        return _Storage(dtype, key, int(count))


def _rebuild_tensor(
    storage: _Storage, first: int, shape: Any, strides: Any, _needs_grad: object, _hooks: object, bits: object = None
) -> _Facts:
    if bits:  # conjugated or negated: not what the memory holds
        raise pickle.UnpicklingError("a lazy view")
    return _Facts(storage, int(first), tuple(map(int, shape)), tuple(map(int, strides)))


class _Window(io.RawIOBase):
    """Bytes in memory as a file, not copied."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
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
