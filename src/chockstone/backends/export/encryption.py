"""Sealing: the files of an export, each encrypted to ``<name>.age``. No plaintext is written anywhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from chockstone.checkpoints.saving.snapshot import Snapshot

SUFFIX: Final = ".age"


def seal_files(snapshot: Snapshot, files: Mapping[str, bytes], recipients: Sequence[Any]) -> dict[str, bytes]:
    """Every tensor file of ``snapshot`` and every other file, encrypted; ``recipients`` as parsed."""
    sealed = {f"{name}{SUFFIX}": _encrypt([memoryview(content)], recipients) for name, content in files.items()}
    for section in snapshot.sections:
        data = snapshot.memory[section.start : section.start + section.size].data
        sealed[f"{section.name}{SUFFIX}"] = _encrypt([memoryview(section.header), data], recipients)
    return sealed


def _encrypt(pieces: Sequence[memoryview], recipients: Sequence[Any]) -> bytes:
    import pyrage  # type: ignore[import-untyped]  # it has no stubs

    sealed = io.BytesIO()
    pyrage.encrypt_io(_Pieces(pieces), sealed, recipients)
    return sealed.getvalue()


class _Pieces:
    """Pieces of memory as one file to read; only what is asked for is copied."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]

    def read(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        first, self._pieces[0] = self._pieces[0][:size], self._pieces[0][size:]
        if not len(self._pieces[0]):
            self._pieces.pop(0)
        return bytes(first)
