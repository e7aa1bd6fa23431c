from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chockstone.catalog import Catalog, SqliteGuard

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite3"


@pytest.fixture
async def catalog(path: Path) -> AsyncIterator[Catalog]:
    """A file, whatever the other tests' catalogs are."""
    async with await Catalog.open(f"sqlite:///{path}") as catalog:
        yield catalog


async def users_in(path: Path) -> list[str]:
    """As a server finds them that starts on the file."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT user_id FROM users")]


async def test_files_that_are_used_and_written_are_not_missing(catalog: Catalog, path: Path) -> None:
    guard = SqliteGuard(path)

    await catalog.users.ensure("ann", now=NOW)
    await users_in(path)  # as other processes come and go

    assert guard.missing() is None
    guard.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_a_file_that_was_deleted_is_missing_and_what_it_held_is_saved(
    catalog: Catalog, path: Path, suffix: str
) -> None:
    guard = SqliteGuard(path)
    await catalog.users.ensure("ann", now=NOW)

    lost = path.with_name(path.name + suffix)
    lost.unlink()
    await catalog.users.ensure("bob", now=NOW)  # nobody has noticed yet

    assert guard.missing() == lost
    said = guard.save(lost)
    saved = path if suffix else next(path.parent.glob("catalog.sqlite3.saved-*"))
    assert str(saved) in said
    copy = path.with_name("read.sqlite3")
    copy.write_bytes(saved.read_bytes())  # not beside our own connections
    assert {"ann", "bob"} <= set(await users_in(copy))
    assert saved == path or saved.stat().st_mode & 0o777 == 0o600
    guard.close()


async def test_a_file_that_was_replaced_is_missing(catalog: Catalog, path: Path) -> None:
    guard = SqliteGuard(path)
    await catalog.users.ensure("ann", now=NOW)

    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)

    assert guard.missing() == path
    guard.close()


async def test_what_cannot_be_saved_is_said(catalog: Catalog, path: Path) -> None:
    guard = SqliteGuard(path)
    for file in list(path.parent.iterdir()):
        file.unlink()
    path.parent.rmdir()

    assert guard.missing() == path
    assert "could not be saved" in guard.save(path)
    path.parent.mkdir()
    guard.close()
