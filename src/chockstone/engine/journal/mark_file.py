"""Mark files: how far the journal of a run was acknowledged, in a small file of its own, apart from the journal.

The journal's writer replaces the mark in place when an operation is durable and before its client gets the answer. A
journal that ends before its mark has lost its end.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

_MAGIC: Final = b"\x89CHKMRK\n"
_FIELDS: Final = struct.Struct("<8sQQ16s")  # magic, sequence, operations, birth
_DIGEST: Final = struct.Struct("<Q")
MARK_BYTES: Final = _FIELDS.size + _DIGEST.size
_BIRTH_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class JournalMark:
    birth: str  # of the run: a later run with the same id has another one
    sequence: int  # of the last operation that was acknowledged, in the journal
    operations: int  # that were acknowledged since the run was made

    def encode(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, self.sequence, self.operations, self.birth.encode()[:_BIRTH_BYTES])
        return fields + _DIGEST.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, data: bytes) -> JournalMark | None:
        """None: damaged, or of another version."""
        fields, digest = data[: _FIELDS.size], data[_FIELDS.size :]
        if len(data) != MARK_BYTES or digest != _DIGEST.pack(xxhash.xxh3_64_intdigest(fields)):
            return None
        magic, sequence, operations, birth = _FIELDS.unpack(fields)
        return cls(birth.rstrip(b"\0").decode(errors="replace"), sequence, operations) if magic == _MAGIC else None


class MarkFile:
    """``write`` and ``close`` are for the journal's writer thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def write(self, mark: JournalMark) -> None:
        """Replace what is there, in one write. It survives this process, and is not synced. Raises OSError."""
        if self._descriptor is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.pwrite(self._descriptor, mark.encode(), 0)

    def read(self) -> JournalMark | None:
        """None: there is none, or it is damaged. Raises OSError."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            return JournalMark.decode(os.pread(descriptor, MARK_BYTES + 1, 0))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)
