"""API keys in a server's catalog: created, listed and revoked without the server, whether it runs or not.

Only digests are stored. A running server takes a change within a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed
from chockstone.cli.settings.settings import Settings
from chockstone.engine.ownership.api_keys import make_key
from chockstone.engine.ownership.catalog_claim import CatalogRefused, require_catalog_within
from chockstone.engine.ownership.data_directory import DATABASE, private_files
from chockstone.engine.ownership.keys_record import KeysRecord
from chockstone.wire.redaction import redact_url

if TYPE_CHECKING:
    from chockstone.catalog import Catalog
    from chockstone.catalog.tables.users import KeyRow

T = TypeVar("T")


class CatalogOutOfReach(CommandFailed):
    exit_code = ExitCode.UNREACHABLE


class NoSuchKey(CommandFailed):
    exit_code = ExitCode.FAILED


def create_key(settings: Settings, user: str, *, note: str, now: datetime) -> tuple[KeyRow, str]:
    """Make a key, and the catalog if there is none. The key itself is kept nowhere."""
    made = make_key()
    _check_record(settings)
    with private_files():
        if settings.deployment.database is None:
            _make(settings.data)
            _refuse_new_catalog(settings)
        row = _change(settings, lambda catalog: catalog.keys.add(user, made.digest, hint=made.hint, note=note, now=now))
        if settings.deployment.database is None:  # else the data may be on another machine, and its server remembers
            _remember(settings.data)
    return row, made.key


def list_keys(settings: Settings) -> list[KeyRow]:
    """Every key, revoked ones too."""
    if not _exists(settings):
        raise CatalogOutOfReach(
            f"there is no catalog in {_place(settings)}; name the data directory with --data, or the catalog with "
            f"--database, or create the first key with `chockstone keys create USER`"
        )
    return _run(partial(_keys, settings.database_url))


def revoke_key(settings: Settings, key_id: str, *, now: datetime) -> KeyRow:
    rows = {str(row.key_id): row for row in list_keys(settings)}
    row = rows.get(key_id)
    if row is None or row.revoked_at is not None:
        raise NoSuchKey(f"there is no active key {key_id!r} in {_place(settings)}; `chockstone keys ls` lists the keys")
    _change(settings, lambda catalog: catalog.keys.revoke(row.key_id, now=now))
    return row


def users_with_keys(settings: Settings, *, wait_seconds: float = 0.0) -> list[str] | None:
    """Users with a key that is not revoked; empty if there is no catalog yet.

    None: the catalog is of an older version, and only a server that migrates it can tell. Waits for a database server
    that is away, ``wait_seconds`` at most.
    """
    if not _exists(settings, wait_seconds=wait_seconds):
        return []
    from chockstone.catalog import CatalogNotReady

    async def look() -> list[KeyRow] | None:
        with suppress(CatalogNotReady):
            return await _keys(settings.database_url)
        return None

    rows = _run(look)
    return None if rows is None else list(dict.fromkeys(row.user_id for row in rows if not row.is_revoked))


def _exists(settings: Settings, *, wait_seconds: float = 0.0) -> bool:
    _check_record(settings)
    if settings.deployment.database is None:  # known without loading a database
        return (settings.data / DATABASE).exists()
    from chockstone.catalog import Catalog

    return _run(lambda: Catalog.exists(settings.database_url, wait_seconds=wait_seconds))


def _make(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CatalogOutOfReach(
            f"the data directory {str(data)!r} cannot be created: {error.strerror or error}"
        ) from None


def _refuse_new_catalog(settings: Settings) -> None:
    """The first key makes the catalog, though not beside archives, which had one."""
    if _exists(settings):
        return
    from chockstone.checkpoints import open_store
    from chockstone.checkpoints.errors import StoreError
    from chockstone.engine.ownership.lost_catalog import refuse_archives
    from chockstone.engine.ownership.store_claim import StoreRefused, store_of

    try:
        store = open_store(settings.deployment.store or store_of(settings.data))
        refuse_archives(store, str(settings.data / DATABASE), data=settings.data, is_elsewhere=False)
    except (CatalogRefused, StoreError, StoreRefused) as error:
        raise CatalogOutOfReach(str(error)) from None


def _remember(data: Path) -> None:
    try:
        KeysRecord(data).write()
    except OSError as error:
        raise CatalogOutOfReach(
            f"the key is created, but {str(data)!r} cannot record that keys are required: {error.strerror or error}. "
            "The next server that starts there records it"
        ) from None


def _place(settings: Settings) -> str:
    """Where the catalog is, for people."""
    return repr(
        str(settings.data) if settings.deployment.database is None else redact_url(settings.deployment.database)
    )


async def _keys(url: str) -> list[KeyRow]:
    from chockstone.catalog import Catalog

    async with await Catalog.look_into(url) as catalog:
        return list(await catalog.keys.list())


def _change(settings: Settings, work: Callable[[Catalog], Awaitable[T]]) -> T:
    from chockstone.catalog import Catalog

    async def run() -> T:
        async with await Catalog.open(settings.database_url, may_migrate=False) as catalog:
            return await work(catalog)

    return _run(run)


def _check_record(settings: Settings) -> None:
    try:
        if settings.deployment.database is None:
            require_catalog_within(settings.data)
    except CatalogRefused as error:
        raise CatalogOutOfReach(str(error)) from None


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    from chockstone.catalog import CatalogError

    try:
        return asyncio.run(work())
    except CatalogError as error:
        raise CatalogOutOfReach(str(error)) from None
