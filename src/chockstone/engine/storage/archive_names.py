"""Archive names: where in the store a checkpoint lives."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

_LONGEST: Final = 200  # of a store's name component, with room for what a write adds to it
HASHED: Final = "x-"
RECOVERY: Final = "recovery"
_RUN: Final = re.compile(r"(?P<session>.+)\.train\.(?P<number>\d{1,18})")
_EPHEMERAL: Final = re.compile(r"([^/]+)\.sample\.\d+/ephemeral\Z")


def archive_name(run_id: str, kind: str, name: str, seq_id: int | None = None, *, request_id: str | None = None) -> str:
    """A store name that no other save has: a save is written beside what it replaces, or what is in the trash.

    The same request gets the same name, so that it is known when it is made again. Names a store
    cannot hold appear as a digest; the archive itself has them in its metadata.
    """
    known = None if request_id is None else hashlib.sha256(request_id.encode()).hexdigest()[:16]
    token = known or secrets.token_hex(8)
    save = token if seq_id is None else f"{seq_id}-{token}"
    return f"{stored_session(run_id)}/{kind}/{stored_name(name)}.{save}"


def stored_name(name: str) -> str:
    """A checkpoint's name as it stands in the store."""
    plain = len(name) <= _LONGEST and not name.startswith((".", HASHED))
    return name if plain else HASHED + hashlib.sha256(name.encode()).hexdigest()


def ephemeral_name(sampling_session_id: str) -> str:
    """The archive of an anonymous sampler's weights."""
    return f"{stored_session(sampling_session_id)}/ephemeral"


def ephemeral_session(archive: str) -> str | None:
    """The session that such weights belong to, as the store spells it; None for every other archive."""
    found = _EPHEMERAL.match(archive)
    return None if found is None else found[1]


def recovery_folder(run_id: str) -> str:
    """The folder of a run's recovery archives."""
    return f"{stored_session(run_id)}/{RECOVERY}"


def recovered_run(archive: str) -> str | None:
    """The run of a recovery archive, as the store spells it; None for every other archive."""
    run, _, rest = archive.partition("/")
    return run if rest.startswith(f"{RECOVERY}/") else None


def run_of_stored(stored: str) -> str | None:
    """The id of the run that the store spells so; None if that is no run."""
    found = _RUN.fullmatch(stored)
    return None if found is None else f"{found['session']}:train:{found['number']}"


def stored_session(session_id: str) -> str:
    """The id of a session, or of something in it, as it stands in the store."""
    return session_id.replace(":", ".")
