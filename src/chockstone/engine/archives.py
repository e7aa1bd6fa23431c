"""Archive names: where in the store a checkpoint lives."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

_LONGEST: Final = 200  # of a store's name component, with room for what a write adds to it
HASHED: Final = "x-"


def archive_name(run_id: str, kind: str, name: str, seq_id: int | None = None) -> str:
    """A store name that was never given before: a save is written beside what it replaces, or what is in the trash.

    Names a store cannot hold appear as a digest; the archive itself has them in its metadata.
    """
    token = secrets.token_hex(8)
    save = token if seq_id is None else f"{seq_id}-{token}"
    return f"{run_id.replace(':', '.')}/{kind}/{stored_name(name)}.{save}"


def stored_name(name: str) -> str:
    """A checkpoint's name as it stands in the store."""
    plain = len(name) <= _LONGEST and not name.startswith((".", HASHED))
    return name if plain else HASHED + hashlib.sha256(name.encode()).hexdigest()


def ephemeral_name(sampling_session_id: str) -> str:
    """For weights that a client samples from without having named them."""
    return f"{sampling_session_id.replace(':', '.')}/ephemeral"
