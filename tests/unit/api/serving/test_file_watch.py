from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.api.serving import file_watch
from chockstone.api.serving.file_watch import FileWatch
from chockstone.catalog import Catalog, SqliteGuard
from chockstone.engine.ownership.data_directory import owned


class Ended(Exception):
    """In place of the process."""


def end(reason: str) -> None:
    raise Ended(reason)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_server_without_its_lock_ends(tmp_path: Path, is_replaced: bool) -> None:
    with owned(tmp_path) as lock:
        keeping = asyncio.create_task(FileWatch(tmp_path, lock, None).keep(end))
        await asyncio.wait({keeping}, timeout=0.1)
        assert not keeping.done()

        (tmp_path / "lock").unlink()
        if is_replaced:
            (tmp_path / "lock").touch()

        with pytest.raises(Ended, match="the lock of the data directory .* was deleted or replaced"):
            await asyncio.wait_for(keeping, 60)


async def test_a_server_without_its_catalog_ends_and_says_where_it_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite3"
    async with await Catalog.open(f"sqlite:///{path}"):
        guard = SqliteGuard(path)
        with owned(tmp_path) as lock:
            keeping = asyncio.create_task(FileWatch(tmp_path, lock, guard).keep(end))
            path.unlink()

            with pytest.raises(Ended, match=r"catalog.sqlite3' of the catalog was deleted .*catalog.sqlite3.saved-"):
                await asyncio.wait_for(keeping, 60)
        guard.close()
