"""Tensor files: a safetensors file that a client sent, mapped and read without trust."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.format.safetensors_header import LENGTH_BYTES, TensorEntry, header_bytes, parse_header
from chockstone.wire.failures import BadRequest

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TYPES: Final = ("F32", "BF16", "F16")
_PIECE_BYTES: Final = 8 << 20


class TensorFile:
    """A context manager over the mapping."""

    def __init__(self, path: Path, *, max_header_bytes: int) -> None:
        """Raises BadRequest for anything but a sound file of numbers in F32, BF16 or F16."""
        self.name = path.name
        descriptor = os.open(path, _READ)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size <= LENGTH_BYTES:
                raise BadRequest(f"{self.name!r} is not a safetensors file: it has {status.st_size} bytes")
            self._mapping = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.size = len(self._mapping)
        try:
            self.entries = self._read_entries(max_header_bytes)
        except BaseException:
            self._mapping.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._mapping.close()

    def numbers(self, key: str) -> npt.NDArray[np.float32]:
        """A copy of the tensor. The numbers of BF16 and F16 stay what they are."""
        entry = self.entries[key]
        content = self._mapping[entry.start : entry.start + entry.size]
        if entry.dtype == "BF16":
            return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").reshape(entry.shape)
        stored = np.frombuffer(content, "<f4" if entry.dtype == "F32" else "<f2")
        return stored.astype(np.float32).reshape(entry.shape)

    def digest(self) -> str:
        """The sha256 of the file."""
        hashed = hashlib.sha256()
        for start in range(0, self.size, _PIECE_BYTES):
            hashed.update(self._mapping[start : start + _PIECE_BYTES])
        return hashed.hexdigest()

    def _read_entries(self, max_header_bytes: int) -> dict[str, TensorEntry]:
        try:
            size = header_bytes(self._mapping[:LENGTH_BYTES], member=self.name, member_bytes=self.size)
            if size > max_header_bytes:
                raise BadRequest(
                    f"the header of {self.name!r} has {size} bytes, and the tensors of this base model need no more "
                    f"than {max_header_bytes}. Send the file that PEFT wrote"
                )
            entries = parse_header(self._mapping[:size], member=self.name, member_bytes=self.size)
        except DamagedArchive as error:
            raise BadRequest(f"{self.name!r} is not a sound safetensors file: {error}. Send the file again") from None
        for entry in entries.values():
            if entry.dtype not in _TYPES:
                raise BadRequest(
                    f"tensor {entry.key!r:.200} of {self.name!r} has the type {entry.dtype}; weights are imported as "
                    f"{', '.join(_TYPES)}. Cast them first"
                )
        return entries
