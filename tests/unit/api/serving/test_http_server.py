from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from chockstone.api.serving.http_server import get_ready
from support.api.users import KEYS
from support.served import Served


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    turns = sys.getswitchinterval()
    yield
    sys.setswitchinterval(turns)


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """The apps of this file: they are frozen with everything else."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def test_the_first_request_finds_all_routes_made(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("made while a request waits")

    get_ready(served.app)

    monkeypatch.setattr("fastapi.routing.get_dependant", never)
    assert (await served.http.get("healthz")).status_code == 200
    assert (await served.http.get("nowhere", headers={"X-API-Key": KEYS["ann"]})).status_code == 404


async def test_the_garbage_collector_leaves_alone_what_was_there_before(served: Served) -> None:
    get_ready(served.app)

    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 10_000
