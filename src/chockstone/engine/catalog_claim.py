"""The claim on a catalog: a catalog outside of the data directory is one engine's, and says so.

Its runs are brought back from journals, which are in one data directory: an engine that had others would
take every run for lost. So the catalog names the data directory by an id that is kept in it. And one
engine at a time runs on it: while it does, it holds the catalog's lock.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from chockstone.catalog import Catalog, EngineLock
from chockstone.engine.data_directory import ENGINE_ID


class CatalogRefused(Exception):
    """The catalog is not this server's; the message says what to do."""


async def take_catalog(
    catalog: Catalog,
    data: Path,
    *,
    now: datetime,
    wait_seconds: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    may_adopt: bool = False,
) -> EngineLock:
    """Keep other engines off the catalog, and make it this directory's if it is nobody's, or if ``may_adopt``.

    Raises CatalogInUse, CatalogRefused, CatalogUnavailable, OSError.
    """
    host, place = socket.gethostname(), str(data.absolute())
    lock = await catalog.lock_engine(f"chockstone on {host}: {place}", wait_seconds=wait_seconds, on_wait=on_wait)
    try:
        engine_id, bound = _identity(data), await catalog.engine.get()
        if bound is not None and bound.engine_id != engine_id and not may_adopt:
            raise CatalogRefused(
                f"the catalog {catalog.shown_url!r} belongs to the data directory {bound.data!r} of {bound.host!r}, "
                f"where the journals of its runs are: start the server there, or give it a database of its own. If "
                f"that directory is lost, `chockstone doctor --rebuild --data {data}` with the same --database takes "
                "the catalog over: checkpoints stay, runs that were in training are lost"
            )
        if bound is None or (bound.engine_id, bound.host, bound.data) != (engine_id, host, place):
            await catalog.engine.bind(engine_id, host=host, data=place, now=now)
    except BaseException:
        await lock.release()
        raise
    return lock


def _identity(data: Path) -> str:
    """What the directory is known by; made on first use."""
    path = data / ENGINE_ID
    try:
        with path.open("x") as file:
            file.write(secrets.token_hex(16))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    if len(found := path.read_text().strip()) != 32:
        raise CatalogRefused(f"{str(path)!r} does not hold the id of an engine; remove it to have one made")
    return found
