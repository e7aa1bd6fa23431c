"""API keys: how they are made, and what the catalog keeps of them. Light to import.

A key is random, so a plain digest of it reveals nothing. The key itself is kept nowhere.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

_USER: Final = re.compile(r"\w[\w.@+-]*", re.ASCII)
_LONGEST_USER: Final = 255
_HINT: Final = 4  # last characters of a key, to tell it from others


@dataclass(frozen=True, slots=True)
class NewKey:
    key: str = field(repr=False)

    @property
    def digest(self) -> str:
        return digest_of(self.key)

    @property
    def hint(self) -> str:
        return self.key[-_HINT:]


def make_key() -> NewKey:
    return NewKey(f"tml-{secrets.token_hex(24)}")


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()  # looked up by digest, so timing reveals nothing about the key


def check_user(user: str) -> None:
    """Raises ValueError for what cannot be a user's name."""
    if not _USER.fullmatch(user) or len(user) > _LONGEST_USER:
        raise ValueError("a user's name has letters, digits and . _ @ + - only, as in alice=tml-…")
