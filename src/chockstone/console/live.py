"""Live pages: event streams that send the parts of a page whose text has changed.

A stream renders its parts at intervals; pages that show the same to the same user share one rendering. A page that
connects again gets all parts at once, so it shows what happened meanwhile, a restart of the server included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol, Self

import orjson
from fastapi import Depends, Request
from fastapi.responses import StreamingResponse

from chockstone.api.context import Context
from chockstone.api.event_streams import PING, PING_SECONDS, encode_event
from chockstone.api.users import Caller
from chockstone.catalog import CatalogError, RowMissing
from chockstone.console.gate import Gate

log = logging.getLogger(__name__)
INTERVAL_SECONDS: Final = 2.0
_MOST_KEPT: Final = 256  # renderings
_LONGEST_SECONDS: Final = 3600.0  # then the page connects again

Parts = Mapping[str, str]  # markup by the name in ``data-part``
Render = Callable[[], Awaitable[Parts]]


@dataclass(slots=True)
class _Rendering:
    parts: Parts = field(default_factory=dict)
    at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LiveFeed(Protocol):
    """Further events of a stream, which waits for them between two renderings. Open inside its context."""

    @property
    def has_ended(self) -> bool: ...

    async def next(self, *, timeout_seconds: float) -> bytes | None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Live:
    """Of one console: the renderings that its streams share."""

    def __init__(self, context: Context, gate: Gate, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._gate = gate
        self._monotonic = monotonic
        self._renderings: dict[Hashable, _Rendering] = {}

    def stream(
        self, request: Request, caller: Caller, render: Render, *, key: Hashable, feed: LiveFeed | None = None
    ) -> StreamingResponse:
        """Events ``parts`` with what ``render`` makes, and the events of ``feed`` between them.

        ``key``: streams of a caller with the same key show the same. Raises Busy when too many streams are open.
        """
        self._context.refuse_when_stopping()
        events = self._events(request, render, (caller.user_id, key), feed or _Pause())
        return self._context.event_streams.open(caller.user_id, events)

    async def _events(self, request: Request, render: Render, key: Hashable, feed: LiveFeed) -> AsyncIterator[bytes]:
        """Until the server stops, the session ends, or what the page shows is deleted."""
        sent: dict[str, str] = {}
        due = last_sent = self._monotonic()
        end = due + _LONGEST_SECONDS
        with feed:
            while not self._context.engine.is_stopping and self._gate.is_current(request) and not feed.has_ended:
                now = self._monotonic()
                if now >= end:
                    return
                if now >= due:
                    due = now + INTERVAL_SECONDS
                    try:
                        parts = await self._rendered(key, render)
                    except RowMissing:
                        yield event("gone", {})
                        return
                    except (CatalogError, OSError) as error:
                        log.debug("live page not rendered path=%s error=%s", request.url.path, error)
                        parts = {}
                    if changed := {name: text for name, text in parts.items() if sent.get(name) != text}:
                        sent |= changed
                        last_sent = now
                        yield event("parts", changed)
                if (found := await feed.next(timeout_seconds=max(0.05, due - self._monotonic()))) is not None:
                    last_sent = now
                    yield found
                elif now - last_sent > PING_SECONDS:
                    last_sent = now
                    yield PING

    async def _rendered(self, key: Hashable, render: Render) -> Parts:
        kept = self._renderings.setdefault(key, _Rendering())
        if len(self._renderings) > _MOST_KEPT:
            del self._renderings[next(iter(self._renderings))]
        async with kept.lock:
            if self._monotonic() - kept.at > INTERVAL_SECONDS / 2:
                kept.parts = await render()
                kept.at = self._monotonic()
            return kept.parts


def event(name: str, data: object, *, event_id: int | None = None) -> bytes:
    return encode_event(orjson.dumps(data), event=name, event_id=event_id)


class _Pause:
    """No further events."""

    has_ended = False

    async def next(self, *, timeout_seconds: float) -> bytes | None:
        await asyncio.sleep(timeout_seconds)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


LiveDep = Annotated[Live, Depends(_live)]
