from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Request

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import RowMissing
from chockstone.console import live as module
from chockstone.console.gate import Gate
from chockstone.console.live import Live, Parts, event
from chockstone.console.session import BrowserSessions
from chockstone.engine.config import Busy
from support.api.users import KEYS

CALLER = Caller("ann")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.01)


@pytest.fixture
def gate(context: Context) -> Gate:
    sessions = BrowserSessions(b"s" * 32, context.users, cookie_path="/console", now=context.now)
    return Gate(sessions, public_url=None)


@pytest.fixture
def request_of_ann(gate: Gate) -> Request:
    from fastapi import Response

    response = Response()
    gate._sessions.begin(response, KEYS["ann"], is_secure=False)
    cookie = response.headers["set-cookie"].partition(";")[0]
    return Request({"type": "http", "path": "/console/live/x", "headers": [(b"cookie", cookie.encode())]})


def parse(text: bytes) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in text.decode().strip().splitlines())
    return fields["event"], json.loads(fields["data"])


async def take(events: AsyncIterator[Any], count: int) -> list[tuple[str, Any]]:
    async with asyncio.timeout(30):
        return [parse(await anext(events)) for _ in range(count)]


async def test_a_part_is_sent_at_first_and_whenever_it_has_changed(
    context: Context, gate: Gate, request_of_ann: Request
) -> None:
    texts = iter(["1", "1", "1", "2"])
    last = "2"

    async def render() -> Parts:
        return {"same": "<p>", "number": next(texts, last)}

    events = Live(context, gate).stream(request_of_ann, CALLER, render, key="x").body_iterator
    found = await take(events, 2)
    await events.aclose()  # type: ignore[attr-defined]  # a generator

    assert found == [("parts", {"same": "<p>", "number": "1"}), ("parts", {"number": "2"})]


async def test_pages_of_the_same_key_share_a_rendering_and_others_do_not(
    context: Context, gate: Gate, request_of_ann: Request
) -> None:
    now = 0.0
    live = Live(context, gate, monotonic=lambda: now)
    count = 0

    async def render() -> Parts:
        nonlocal count
        count += 1
        return {"n": str(count)}

    streams = [
        live.stream(request_of_ann, Caller(user), render, key=key).body_iterator
        for user, key in (("ann", "x"), ("ann", "x"), ("ann", "y"), ("bob", "x"))
    ]
    found = [(await take(each, 1))[0][1]["n"] for each in streams]
    for each in streams:
        await each.aclose()  # type: ignore[attr-defined]  # a generator

    assert found == ["1", "1", "2", "3"]


async def test_a_stream_ends_with_the_session_the_server_and_the_thing_it_shows(
    context: Context, gate: Gate, request_of_ann: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def render() -> Parts:
        return {"a": "b"}

    async def missing() -> Parts:
        raise RowMissing("gone")

    live = Live(context, gate)
    gone = live.stream(request_of_ann, CALLER, missing, key="gone").body_iterator
    assert [parse(text)[0] async for text in gone] == ["gone"]  # type: ignore[arg-type]  # bytes

    revoked = live.stream(request_of_ann, CALLER, render, key="x").body_iterator
    await take(revoked, 1)
    context.users._configured = {}
    context.users.reload([])
    assert [text async for text in revoked] == []

    context.engine.shutdown.begin()
    stopping = live._events(request_of_ann, render, "y", module._Pause())
    assert [text async for text in stopping] == []


async def test_too_many_streams_are_refused(context: Context, gate: Gate, request_of_ann: Request) -> None:
    async def render() -> Parts:
        return {"a": "b"}

    live = Live(context, gate)
    context.event_streams._max_per_user = 1
    first = live.stream(request_of_ann, CALLER, render, key="x").body_iterator
    await take(first, 1)

    with pytest.raises(Busy):
        live.stream(request_of_ann, CALLER, render, key="x")
    await first.aclose()  # type: ignore[attr-defined]  # a generator


async def test_a_catalog_that_is_away_for_a_moment_ends_no_stream(
    context: Context, gate: Gate, request_of_ann: Request
) -> None:
    answers = iter([OSError("away"), OSError("away"), None])

    async def render() -> Parts:
        if (error := next(answers, None)) is not None:
            raise error
        return {"a": "b"}

    events = Live(context, gate).stream(request_of_ann, CALLER, render, key="x").body_iterator

    assert await take(events, 1) == [("parts", {"a": "b"})]
    await events.aclose()  # type: ignore[attr-defined]  # a generator


def test_an_event_is_one_line_of_json_whatever_is_in_it() -> None:
    text = event("points", {"a": "line\nid: 7\n\n<b>"}, event_id=3)

    assert text.count(b"\n") == 4
    assert parse(text) == ("points", {"a": "line\nid: 7\n\n<b>"})
