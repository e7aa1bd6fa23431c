"""Visits: the doctor at a data directory, to look or to treat.

To look is safe at any time: it reads a copy of the catalog, so a server goes on undisturbed and a
catalog of an older version stays as it is. To treat, the directory must be nobody else's.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CatalogUnavailable
from chockstone.checkpoints import open_store
from chockstone.engine.data_directory import ARCHIVES, DATABASE, RUN_JOURNALS, is_owned, owned
from chockstone.engine.doctor import Progress, examine, lasting
from chockstone.engine.doctor_findings import Ailment, Examination
from chockstone.engine.doctor_repairs import Orders, Repair, Repairs

_ROUNDS: Final = 4  # a repair may show what stood behind it


class NoCatalog(Exception):
    """There is no database to repair."""


@dataclass(frozen=True, slots=True)
class Visit:
    examination: Examination  # of how things are at the end
    repairs: tuple[Repair, ...] = ()
    is_served: bool = False
    has_catalog: bool = True


async def look(data: Path, *, now: datetime, is_full: bool, progress: Progress) -> Visit:
    """Examine, and change nothing. Raises CatalogError, StoreError."""
    is_served = is_owned(data)
    examination = await _examine_copy(data, now=now, is_served=is_served, is_full=is_full, progress=progress)
    if is_served and examination.findings:
        again = await _examine_copy(data, now=now, is_served=True, is_full=False, progress=progress)
        examination = lasting(examination, again)
    return Visit(examination, is_served=is_served, has_catalog=(data / DATABASE).exists())


async def treat(data: Path, orders: Orders, *, now: datetime, is_full: bool, progress: Progress) -> Visit:
    """Repair what the orders allow, until nothing more can be done. A rebuild makes the catalog if there is none.

    Raises DirectoryInUse, NoCatalog, CatalogError, StoreError.
    """
    with owned(data):
        if not (orders.may_create or (data / DATABASE).exists()):
            raise NoCatalog(
                f"there is no catalog {str(data / DATABASE)!r} to repair. "
                "`chockstone doctor --rebuild` makes one from the store"
            )
        store = open_store(data / ARCHIVES)
        async with await Catalog.open(f"sqlite:///{data / DATABASE}") as catalog:
            journals = data / RUN_JOURNALS
            first = await examine(catalog, store, now=now, journals=journals, is_full=is_full, progress=progress)
            await catalog.checkpoints.mark_verified(sorted(first.verified), at=now)
            doctor = Repairs(catalog, store, orders, now=now, journals=journals)
            repairs: list[Repair] = []
            tried: set[tuple[Ailment, str]] = set()
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
        unread = tuple(each for each in first.findings if each.ailment is Ailment.UNREADABLE)
        seen = {each.key for each in current.findings}
        left = (*current.findings, *(each for each in unread if each.key not in seen))
        return Visit(replace(current, findings=left), tuple(repairs))


async def _examine_copy(
    data: Path, *, now: datetime, is_served: bool, is_full: bool, progress: Progress
) -> Examination:
    with _copy(data / DATABASE) as url:
        async with await Catalog.open(url) as catalog:
            store = open_store(data / ARCHIVES)
            return await examine(
                catalog,
                store,
                now=now,
                journals=data / RUN_JOURNALS,
                is_served=is_served,
                is_full=is_full,
                progress=progress,
            )


@contextmanager
def _copy(database: Path) -> Iterator[str]:
    """A catalog like this one, as of now; an empty one where there is none."""
    with tempfile.TemporaryDirectory(prefix="chockstone-doctor-") as directory:
        copy = Path(directory) / DATABASE
        if database.exists():
            try:
                with (
                    closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
                    closing(sqlite3.connect(copy)) as target,
                ):
                    source.backup(target)
            except sqlite3.Error as error:
                raise CatalogUnavailable(f"the catalog {str(database)!r} cannot be read: {error}") from error
        yield f"sqlite:///{copy}"
