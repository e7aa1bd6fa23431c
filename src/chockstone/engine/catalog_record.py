"""The record: a data directory whose catalog is elsewhere says where.

Without it a server that is started without ``--database``, from another shell or by a unit that lacks its
environment, would take the SQLite file of before for its catalog, and carry out expiries and deletions of
that time on a store that lives on. Light to import: commands ask before they load a database.
"""

from __future__ import annotations

import json
from pathlib import Path

from chockstone.engine.data_directory import CATALOG_RECORD, DATABASE


class CatalogRefused(Exception):
    """The catalog is not this server's; the message says what to do."""


def require_catalog_within(data: Path) -> None:
    """Keep off the SQLite file in the directory where it is not the catalog any more. Raises CatalogRefused."""
    if (told := catalog_of(data)) is not None:
        raise CatalogRefused(
            f"the catalog of the data directory {str(data)!r} is {told!r}: give that with --database or "
            f"CHOCKSTONE_DATABASE. To go back to the file {DATABASE!r} in the directory, as it was before, remove "
            f"{str(data / CATALOG_RECORD)!r}"
        )


def catalog_of(data: Path) -> str | None:
    """Its URL, without a password, as the directory's server was told it last. None: it is in there, or nowhere yet.

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
