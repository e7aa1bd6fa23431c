"""Archive names: where in the store a checkpoint lives."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

_LONGEST: Final = 200  # of a store's name component, with room for what a write adds to it
_HASHED: Final = "x-"


def archive_name(run_id: str, kind: str, name: str, seq_id: int | None) -> str:
    """A store name, different for different saves: one that replaces another is written beside it.

    Names a store cannot hold appear as a digest; the archive itself has them in its metadata.
    """
    plain = len(name) <= _LONGEST and not name.startswith((".", _HASHED))
    stored = name if plain else _HASHED + hashlib.sha256(name.encode()).hexdigest()
    save = secrets.token_hex(8) if seq_id is None else str(seq_id)
    return f"{run_id.replace(':', '.')}/{kind}/{stored}.{save}"


def ephemeral_name(sampling_session_id: str) -> str:
    """For weights that a client samples from without having named them."""
    return f"{sampling_session_id.replace(':', '.')}/ephemeral"
