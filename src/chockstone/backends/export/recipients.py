"""Recipients: whom an export is encrypted to, in the age format. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from chockstone.wire.failures import BadRequest

MAX_RECIPIENTS: Final = 10
_SHOWN_CHARACTERS: Final = 80


def parse_recipients(recipients: Sequence[str]) -> list[Any]:  # Any: pyrage's own kinds of keys
    """The keys behind ``age1…`` and ``ssh-ed25519 …`` or ``ssh-rsa …`` lines; BadRequest says which one is none."""
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
