"""The claim on a catalog: a catalog outside the data directory belongs to one engine, and both record that.

Runs are recovered from journals in one data directory. An engine with another directory would mark every run as lost.
So the catalog has the id of its data directory, and the directory records where its catalog is. Only one engine at a
time runs on a catalog: it holds the catalog's lock.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from chockstone.checkpoints.stores.posix import fsync_directory, put_file
from chockstone.engine.ownership.data_directory import CATALOG_RECORD, DATABASE, ENGINE_ID

if TYPE_CHECKING:  # a server reads the record before it starts its worker, and imports the database after that
    from chockstone.catalog import Catalog, EngineLock, EngineRow


async def take_catalog(
    catalog: Catalog,
    data: Path,
    *,
    now: datetime,
    wait_seconds: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    may_adopt: bool = False,
) -> EngineLock:
    """Keep other engines off the catalog, bring it up to date, and make it this directory's: if it is nobody's and
    the directory has no other, or if ``may_adopt``.

    A catalog that is refused stays as it is, whatever its version.
    Raises CatalogInUse, CatalogRefused, CatalogTooNew, CatalogForeign, CatalogUnavailable, OSError.
    """
    host, place = socket.gethostname(), str(data.absolute())
    lock = await catalog.lock_engine(f"chockstone on {host}: {place}", wait_seconds=wait_seconds, on_wait=on_wait)
    try:
        before, engine_id, bound = catalog_of(data), _identity(data), await catalog.engine.get()
        if not may_adopt:
            _require_ours(catalog.shown_url, data, before=before, engine_id=engine_id, bound=bound)
        await catalog.bring_up_to_date()
        if before not in (None, catalog.shown_url) and (bound is None or bound.engine_id != engine_id):
            engine_id = secrets.token_hex(16)  # the catalog of before knows the old one, and is refused from now on
        if bound is None or (bound.engine_id, bound.host, bound.data) != (engine_id, host, place):
            await catalog.engine.bind(engine_id, host=host, data=place, now=now)
        _remember(data, engine_id, catalog)
    except BaseException:
        await lock.release()
        raise
    return lock


def _require_ours(shown_url: str, data: Path, *, before: str | None, engine_id: str, bound: EngineRow | None) -> None:
    if bound is not None and bound.engine_id == engine_id:
        return  # by whatever name
    if before not in (None, shown_url):
        raise CatalogRefused(
            f"the catalog of the data directory {str(data)!r} is {before!r}, and not {shown_url!r}: give that with "
            f"--database. To move it, `chockstone doctor --rebuild --data {data}` with the new --database lists the "
            "checkpoints there"
        )
    if bound is not None:
        raise CatalogRefused(
            f"the catalog {shown_url!r} belongs to the data directory {bound.data!r} of {bound.host!r}, where the "
            "journals of its runs are: start the server there, or give it a database of its own. If that directory is "
            f"lost, `chockstone doctor --rebuild --data {data}` with the same --database takes the catalog over: "
            "checkpoints stay, runs that were in training are lost"
        )


def _identity(data: Path) -> str:
    """What the directory is known by; made on first use."""
    path = data / ENGINE_ID
    if not path.exists():
        with suppress(FileExistsError):
            put_file(path, secrets.token_hex(16).encode(), may_replace=False)
    if len(found := path.read_text().strip()) != 32:
        raise CatalogRefused(f"{str(path)!r} does not hold the id of an engine; remove it to have one made")
    return found


def _remember(data: Path, engine_id: str, catalog: Catalog) -> None:
    """The directory's side of the claim. A catalog in the directory needs no record, and moves with it."""
    if _identity(data) != engine_id:
        put_file(data / ENGINE_ID, engine_id.encode(), may_replace=True)
    if catalog.path is not None and catalog.path.resolve() == (data / DATABASE).resolve():
        (data / CATALOG_RECORD).unlink(missing_ok=True)
        fsync_directory(data)
    elif catalog_of(data) != catalog.shown_url:
        record = json.dumps({"database": catalog.shown_url}, indent=2) + "\n"
        put_file(data / CATALOG_RECORD, record.encode(), may_replace=True)


class CatalogRefused(Exception):
    """The catalog is not this server's; the message says what to do."""


def require_catalog_within(data: Path) -> None:
    """Keep off the SQLite file in the directory where it is not the catalog any more. Raises CatalogRefused."""
    if (recorded := catalog_of(data)) is not None:
        raise CatalogRefused(
            f"the catalog of the data directory {str(data)!r} is {recorded!r}: give that with --database or "
            f"CHOCKSTONE_DATABASE. To go back to the file {DATABASE!r} in the directory, as it was before, remove "
            f"{str(data / CATALOG_RECORD)!r}"
        )


def catalog_of(data: Path) -> str | None:
    """Its URL, without a password, as the directory's last server had it. None: it is in there, or nowhere yet.

    Raises CatalogRefused.
    """
    path = data / CATALOG_RECORD
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CatalogRefused(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except ValueError:
        document = None
    database = document.get("database") if isinstance(document, dict) else None
    if not isinstance(database, str):
        raise CatalogRefused(
            f"{str(path)!r} does not say where the catalog of this directory is; remove it, and give --database"
        )
    return database
