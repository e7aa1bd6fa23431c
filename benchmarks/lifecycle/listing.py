"""Listing: pages of ten thousand checkpoints, and what the server keeps in memory for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows
from benchmarks.lifecycle.filling import fill
from benchmarks.lifecycle.memory_watch import MemoryWatch
from benchmarks.lifecycle.setup import Setup
from benchmarks.live.client import session
from benchmarks.live.server import KEY, connect

FIRST = "first page of 100"
MIDDLE = "page of 100 in the middle"
LONG = "page of 1,000"
THROUGH_SDK = "first page of 100, through the SDK"


def measure_listing(context: Context, setup: Setup) -> Rows:
    count = setup.scale.listed
    context.describe(f"{count:,} checkpoints")
    context.say(f"making {count} checkpoints")
    fill(setup, count, session_id="listing")
    with session(setup.server.url) as service:
        rest = service.create_rest_client()

        def through_sdk() -> None:
            assert len(rest.list_user_checkpoints(limit=100).result().checkpoints) == 100

        actions: dict[str, Callable[[], None]] = {
            FIRST: _Page(setup.server.url, limit=100, offset=0, count=count).fetch,
            MIDDLE: _Page(setup.server.url, limit=100, offset=count // 2, count=count).fetch,
            LONG: _Page(setup.server.url, limit=1000, offset=0, count=count).fetch,
            THROUGH_SDK: through_sdk,
        }
        for action in actions.values():
            action()
        with MemoryWatch(setup.server) as watch:
            rows = context.run_rounds(
                {name: partial(_timed, action) for name, action in actions.items()}, repeats=setup.scale.lists
            )
    rows[FIRST].samples["memory"] = [watch.peak / watch.before]
    return rows


class _Page:
    """One page, asked for again and again on one connection."""

    def __init__(self, url: str, *, limit: int, offset: int, count: int) -> None:
        self._connection = connect(url)
        self._path = f"/api/v1/checkpoints?limit={limit}&offset={offset}"
        self._limit = limit
        self._count = count

    def fetch(self) -> None:
        self._connection.request("GET", self._path, headers={"X-API-Key": KEY})
        answer = json.loads(self._connection.getresponse().read())
        if len(answer["checkpoints"]) != self._limit or answer["cursor"]["total_count"] < self._count:
            raise RuntimeError(f"{self._path} has {len(answer['checkpoints'])} of {answer['cursor']}")


def _timed(action: Callable[[], None]) -> dict[str, float]:
    began = time.perf_counter()
    action()
    return {"seconds": time.perf_counter() - began}
