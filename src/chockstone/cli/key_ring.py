"""The key ring: keys in a server's catalog, made and revoked from beside the server, running or not.

Only digests are kept. A running server takes what changed within a few seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from chockstone.cli.reporting import FOUND, UNREACHABLE, CommandFailed

if TYPE_CHECKING:
    from chockstone.catalog import Catalog
    from chockstone.catalog.keys import KeyRow

T = TypeVar("T")
_FILE: Final = "catalog.sqlite3"
_HINT: Final = 4  # last characters of a key, to tell it from others


class CatalogOutOfReach(CommandFailed):
    exit_code = UNREACHABLE


class NoSuchKey(CommandFailed):
    exit_code = FOUND


def create_key(data: Path, user: str, *, note: str, now: datetime) -> tuple[KeyRow, str]:
    """Make a key, and the catalog if there is none. The key itself is kept nowhere."""
    key = f"tml-{secrets.token_hex(24)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CatalogOutOfReach(f"the data directory {str(data)!r} cannot be made: {error.strerror or error}") from None
    row = _with_catalog(data, lambda catalog: catalog.keys.add(user, digest, hint=key[-_HINT:], note=note, now=now))
    return row, key


def list_keys(data: Path) -> list[KeyRow]:
    """Every key, revoked ones too."""
    _require(data)
    return list(_with_catalog(data, lambda catalog: catalog.keys.list()))


def revoke_key(data: Path, key_id: str, *, now: datetime) -> KeyRow:
    rows = {str(row.key_id): row for row in list_keys(data)}
    row = rows.get(key_id)
    if row is None or row.revoked_at is not None:
        raise NoSuchKey(
            f"there is no key {key_id!r} in {str(data)!r} that could be revoked; "
            f"`chockstone keys ls --data {data}` shows what there is"
        )
    _with_catalog(data, lambda catalog: catalog.keys.revoke(row.key_id, now=now))
    return row


def users_with_keys(data: Path) -> list[str]:
    """Who has a key that is not revoked; nobody where there is no catalog yet."""
    if not (data / _FILE).exists():
        return []
    return list(dict.fromkeys(row.user_id for row in list_keys(data) if row.revoked_at is None))


def _require(data: Path) -> None:
    if not (data / _FILE).exists():
        raise CatalogOutOfReach(
            f"there is no catalog in {str(data)!r}; say with --data where the server keeps its data, or make the "
            f"first key with `chockstone keys create USER`"
        )


def _with_catalog(data: Path, work: Callable[[Catalog], Awaitable[T]]) -> T:
    from chockstone.catalog import Catalog, CatalogError

    async def run() -> T:
        async with await Catalog.open(f"sqlite:///{data / _FILE}") as catalog:
            return await work(catalog)

    try:
        return asyncio.run(run())
    except CatalogError as error:
        raise CatalogOutOfReach(str(error)) from None
