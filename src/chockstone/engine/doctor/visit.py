"""Runs the doctor on a data directory, to examine or to repair it.

An examination is safe at any time: it reads a copy of the catalog, so it does not disturb a server, and a catalog of an
older version stays as it is. A catalog on PostgreSQL is read in place and must be of this version. A repair needs the
locks of the directory and of a catalog elsewhere.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CatalogUnavailable
from chockstone.checkpoints import open_store
from chockstone.engine.doctor.examination import Progress, examine, lasting
from chockstone.engine.doctor.findings import Examination, FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs, Repair, Repairs
from chockstone.engine.ownership.catalog_claim import require_catalog_within, take_catalog
from chockstone.engine.ownership.data_directory import DATABASE, RUN_JOURNALS, is_owned, owned, private_files
from chockstone.engine.ownership.store_claim import adopt_store, claim_store, store_of
from chockstone.wire.redaction import redact_url

_FILE: Final = "sqlite:///"
_ROUNDS: Final = 4  # a repair may show what stood behind it


class NoCatalog(Exception):
    """There is no database to repair."""


@dataclass(frozen=True, slots=True)
class Visit:
    examination: Examination  # of how things are at the end
    repairs: tuple[Repair, ...] = ()
    is_served: bool = False
    has_catalog: bool = True
    made_catalog: bool = False  # by this visit


async def look(
    data: Path,
    *,
    now: datetime,
    is_full: bool,
    progress: Progress,
    store_url: str | None = None,
    database_url: str | None = None,
) -> Visit:
    """Examine, and change nothing. ``store_url``: None is the store that the directory names.

    Raises CatalogError, CatalogRefused, StoreError, StoreRefused.
    """
    is_served = is_owned(data)
    database = _database(data, database_url)
    store = open_store(store_url or store_of(data))
    has_catalog = await Catalog.exists(database)

    async def examined(*, is_full: bool) -> Examination:
        async with _as_it_is(database, is_there=has_catalog) as catalog:
            return await examine(
                catalog,
                store,
                now=now,
                journals=data / RUN_JOURNALS,
                is_served=is_served,
                is_full=is_full,
                progress=progress,
            )

    examination = await examined(is_full=is_full)
    if is_served and examination.findings:
        examination = lasting(examination, await examined(is_full=False))
    return Visit(examination, is_served=is_served, has_catalog=has_catalog)


async def repair(
    data: Path,
    allowed: AllowedRepairs,
    *,
    now: datetime,
    is_full: bool,
    progress: Progress,
    store_url: str | None = None,
    database_url: str | None = None,
) -> Visit:
    """Repair what is allowed, until nothing more can be done. A rebuild makes the catalog if there is none,
    and makes a store and a catalog that were another's this directory's.

    Raises DirectoryInUse, NoCatalog, CatalogError, CatalogRefused, StoreError, StoreRefused.
    """
    database = _database(data, database_url)
    with private_files(), owned(data):
        has_catalog = await Catalog.exists(database)
        if not (allowed.may_create or has_catalog):
            raise NoCatalog(
                f"there is no catalog {redact_url(database).removeprefix(_FILE)!r} to repair. "
                "`chockstone doctor --rebuild` makes one from the store"
            )
        store = open_store(store_url or store_of(data))
        if allowed.may_create:
            adopt_store(data, store)
        claim_store(data, store)
        async with AsyncExitStack() as stack:
            catalog = await stack.enter_async_context(await Catalog.reach(database))
            if database_url is None:
                await catalog.bring_up_to_date()
            else:
                lock = await take_catalog(catalog, data, now=now, may_adopt=allowed.may_create)
                stack.push_async_callback(lock.release)
            journals = data / RUN_JOURNALS
            first = await examine(catalog, store, now=now, journals=journals, is_full=is_full, progress=progress)
            await catalog.checkpoints.mark_verified(sorted(first.verified), at=now)
            for save_id, seal in sorted(first.unsealed.items()):
                await catalog.checkpoints.add_seal(save_id, seal)
            doctor = Repairs(catalog, store, allowed, now=now, journals=journals)
            repairs: list[Repair] = []
            tried: set[tuple[FindingKind, str]] = set()
            current = first
            for _ in range(_ROUNDS):
                todo = [each for each in current.findings if each.key not in tried]
                tried |= {each.key for each in todo}
                done = await doctor.carry_out(todo)
                repairs += done
                current = await examine(catalog, store, now=now, journals=journals, progress=progress)
                if not done:
                    break
        # Only a full reading finds these, and it is not done twice.
        unread = tuple(each for each in first.findings if each.kind is FindingKind.UNREADABLE)
        seen = {each.key for each in current.findings}
        left = (*current.findings, *(each for each in unread if each.key not in seen))
        return Visit(replace(current, findings=left), tuple(repairs), made_catalog=not has_catalog)


def _database(data: Path, url: str | None) -> str:
    if url is None:
        require_catalog_within(data)
    return url or f"{_FILE}{data / DATABASE}"


@asynccontextmanager
async def _as_it_is(database: str, *, is_there: bool) -> AsyncIterator[Catalog]:
    """Nothing that is done with it changes it. An empty one where there is none."""
    if is_there and not database.startswith(_FILE):
        async with await Catalog.look_into(database) as catalog:
            yield catalog
        return
    with tempfile.TemporaryDirectory(prefix="chockstone-doctor-") as directory:
        copy = Path(directory) / DATABASE
        if is_there:
            _copy(Path(database.removeprefix(_FILE)), copy)
        async with await Catalog.open(f"{_FILE}{copy}") as catalog:
            yield catalog


def _copy(database: Path, copy: Path) -> None:
    """As it is now."""
    try:
        with (
            closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise CatalogUnavailable(f"the catalog {str(database)!r} cannot be read: {error}") from error
