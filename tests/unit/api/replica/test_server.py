"""The process of an API replica, in this process: it answers, reports refused keys, and stops on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.replica import server
from chockstone.api.serving.startup import CannotStart, bind
from chockstone.catalog import Catalog
from support.api.server_configs import default_config

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the reports of refused keys are started."""
    started = asyncio.Event()

    class Noted(RefusedKeys):
        async def keep_reporting(self) -> None:
            started.set()

    monkeypatch.setattr(server, "RefusedKeys", Noted)
    monkeypatch.setattr(server, "get_ready", lambda _: None)  # which tunes the whole process
    return started


async def test_a_replica_reports_refused_keys_until_a_signal_stops_it(tmp_path: Path, reporting: asyncio.Event) -> None:
    database = f"sqlite:///{tmp_path}/catalog.sqlite3"
    await (await Catalog.open(database)).close()
    config = default_config(tmp_path, keys={"ann": "tml-of-ann"}, database=database)
    announced: asyncio.Future[tuple[int, Sequence[str]]] = asyncio.get_running_loop().create_future()

    with bind("127.0.0.1", 0) as sock:
        serving = asyncio.create_task(
            server._serve(config, NOWHERE, sock, lambda port, users: announced.set_result((port, users)))
        )
        await asyncio.wait({serving, announced}, return_when=asyncio.FIRST_COMPLETED)
        port, users = announced.result()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1/", trust_env=False) as http:
            refused = await http.get("training_runs", headers={"X-API-Key": "tml-guessed"})
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

    assert list(users) == ["ann"]
    assert refused.status_code == 401
    assert reporting.is_set()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_replica_without_a_catalog_does_not_start(
    tmp_path: Path, reporting: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_DATABASE_SECONDS", 0.0)
    config = default_config(tmp_path, keys={"ann": "tml-of-ann"}, database=f"sqlite:///{tmp_path}/none.sqlite3")

    with bind("127.0.0.1", 0) as sock, pytest.raises(CannotStart, match="is no catalog"):
        await server._serve(config, NOWHERE, sock, lambda *_: None)

    assert not reporting.is_set()
