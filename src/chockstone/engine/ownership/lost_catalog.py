"""Lost catalogs: refuses a new catalog for a store that has archives, since it must have had a catalog before.

A server on a new catalog would list no checkpoint, know no key and no policy, and delete what the last server left.
Only `chockstone doctor --rebuild` makes a catalog beside archives.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.checkpoints import Store
from chockstone.engine.ownership.catalog_claim import CatalogRefused


async def refuse_new_catalog(catalog: Catalog, store: Store, *, data: Path, is_elsewhere: bool) -> None:
    """For a catalog as it was found, before it is brought up to date. Raises CatalogRefused, CatalogError, StoreError.

    ``is_elsewhere``: it is not in the data directory, so others may have made its tables, and no more than those.
    """
    if await _was_used(catalog, is_elsewhere=is_elsewhere):
        return
    await asyncio.to_thread(refuse_archives, store, catalog.shown_url, data=data, is_elsewhere=is_elsewhere)


def refuse_archives(store: Store, shown_url: str, *, data: Path, is_elsewhere: bool) -> None:
    """Raises CatalogRefused if the store has any, StoreError."""
    if next(iter(store.entries()), None) is None:
        return
    same = " with the same --database" if is_elsewhere else ""
    raise CatalogRefused(
        f"the catalog {shown_url!r} is new, but the store {store.url!r} has archives: the catalog was lost, or the "
        f"wrong one was given. Put the catalog back if there is a copy; else `chockstone doctor --rebuild --data "
        f"{data}`{same} makes it again from the store. To begin anew, choose another --data"
        f"{' and --store' if not _is_below(store, data) else ''}"
    )


async def _was_used(catalog: Catalog, *, is_elsewhere: bool) -> bool:
    """By a server, or by a doctor who rebuilt it."""
    if await catalog.is_new():
        return False
    return not is_elsewhere or await catalog.engine.get() is not None or await catalog.sessions.are_there()


def _is_below(store: Store, data: Path) -> bool:
    return store.url.startswith(data.absolute().as_uri())
