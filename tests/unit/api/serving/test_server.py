"""Tasks that run as long as the server. ``tests/sdk`` and ``tests/hostile`` test the whole process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.serving import server
from chockstone.api.serving.startup import CannotStart
from chockstone.api.users import UserDirectory
from chockstone.catalog import Catalog
from chockstone.engine.ownership.clock import ServerClock
from chockstone.engine.ownership.data_directory import owned
from chockstone.engine.ownership.keys_record import KeysRecord
from support.api.server_configs import default_config


class NotedRefusals(RefusedKeys):
    def __init__(self) -> None:
        super().__init__()
        self.is_reporting = False

    async def keep_reporting(self) -> None:
        self.is_reporting = True


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
        yield catalog


def users_of(keys: dict[str, str]) -> UserDirectory:
    return UserDirectory(keys, secret=b"s" * 32, now=lambda: datetime.now(UTC))


class Opened:
    """What the tasks use of what the server opened and prepared, with the catalog in the data directory."""

    lock = None
    guard = None

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog


class Serving:
    """What the tasks use of the context of requests."""

    def __init__(self, data: Path) -> None:
        self.config = default_config(data)
        self.users = users_of({})
        self.status = SimpleNamespace(tasks=list)
        self.refused_keys = NotedRefusals()


async def test_refused_keys_are_reported_as_long_as_the_server_runs(tmp_path: Path, catalog: Catalog) -> None:
    context, opened = Serving(tmp_path), Opened(catalog)
    ended: list[str] = []

    with owned(tmp_path) as lock:
        prepared = SimpleNamespace(claim=SimpleNamespace(lock=lock))
        tasks = server._start_background(
            cast("Any", context),  # Any: stand-ins, as the two below
            KeysRecord(tmp_path),
            ServerClock(tmp_path),
            cast("Any", opened),
            cast("Any", prepared),
            end=ended.append,
        )
        await asyncio.sleep(0)  # each task begins
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert context.refused_keys.is_reporting
    assert ended == []


async def test_keys_are_known_before_the_first_request_and_remembered(tmp_path: Path, catalog: Catalog) -> None:
    keys, config = KeysRecord(tmp_path), default_config(tmp_path, keys={"ann": "tml-of-ann"})
    users = users_of({"ann": "tml-of-ann"})

    await server._load_keys(users, catalog, config, keys)

    assert keys.is_there
    with pytest.raises(CannotStart, match="had API keys before"):
        await server._load_keys(users_of({}), catalog, replace(config, keys={}), keys)
