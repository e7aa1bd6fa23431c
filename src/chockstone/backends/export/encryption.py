"""Encryption of exports: each file becomes ``<name>.age`` for its recipients. No plaintext is written to disk."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from chockstone.checkpoints.saving.snapshot import Snapshot
from chockstone.wire.failures import BadRequest

SUFFIX: Final = ".age"
MAX_RECIPIENTS: Final = 10
_SHOWN_CHARACTERS: Final = 80


def parse_recipients(recipients: Sequence[str]) -> list[Any]:  # Any: key classes of pyrage
    """Parse ``age1…``, ``ssh-ed25519 …`` and ``ssh-rsa …`` public keys. BadRequest names the one that is invalid."""
    if not 0 < len(recipients) <= MAX_RECIPIENTS:
        raise BadRequest(
            f"age_encryption_recipients has {len(recipients)} entries; give 1 to {MAX_RECIPIENTS} public keys, "
            "or leave it out for an export that is not encrypted"
        )
    return [_parse(index, recipient) for index, recipient in enumerate(recipients)]


def _parse(index: int, recipient: str) -> Any:  # Any: as above
    import pyrage  # type: ignore[import-untyped]  # it has no stubs

    kind = pyrage.ssh if recipient.startswith("ssh-") else pyrage.x25519
    if recipient.startswith(("ssh-", "age1")):
        try:
            return kind.Recipient.from_str(recipient)
        except pyrage.RecipientError as error:
            raise _refused(index, recipient, str(error)) from error
    if recipient.upper().startswith("AGE-SECRET-KEY-"):
        raise _refused(index, "AGE-SECRET-KEY-…", "it is a secret key; give the public key that belongs to it")
    raise _refused(index, recipient, "keys start with 'age1', 'ssh-ed25519' or 'ssh-rsa'")


def _refused(index: int, recipient: str, why: str) -> BadRequest:
    shown = recipient if len(recipient) <= _SHOWN_CHARACTERS else f"{recipient[:_SHOWN_CHARACTERS]}…"
    return BadRequest(f"age_encryption_recipients[{index}], {shown!r}, is no public key of age: {why}")


def encrypt_files(snapshot: Snapshot, files: Mapping[str, bytes], recipients: Sequence[Any]) -> dict[str, bytes]:
    """Encrypt every tensor file of ``snapshot`` and every other file. ``recipients`` are those of parse_recipients."""
    encrypted = {f"{name}{SUFFIX}": _encrypt([memoryview(content)], recipients) for name, content in files.items()}
    for section in snapshot.sections:
        data = snapshot.memory[section.start : section.start + section.size].data
        encrypted[f"{section.name}{SUFFIX}"] = _encrypt([memoryview(section.header), data], recipients)
    return encrypted


def _encrypt(pieces: Sequence[memoryview], recipients: Sequence[Any]) -> bytes:
    import pyrage

    encrypted = io.BytesIO()
    pyrage.encrypt_io(_Pieces(pieces), encrypted, recipients)
    return encrypted.getvalue()


class _Pieces:
    """A readable file over pieces of memory. It copies only what is read."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]

    def read(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        first, self._pieces[0] = self._pieces[0][:size], self._pieces[0][size:]
        if not len(self._pieces[0]):
            self._pieces.pop(0)
        return bytes(first)
