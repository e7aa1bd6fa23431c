"""Completions: the feed from which one client learns which of its samples are done.

One feed per sampling session and clone. Cursors count completions; a client names the last one it
has seen and gets those after it. Acknowledged completions are dropped, and so are the oldest if there are too many:
clients that poll for each sample never read the feed.

A client does not name the samples that it waits for. So if the journal of samples is lost, only the cursor shows that
the client waits in vain: it is one that no server with this journal gave out. A client gets its first cursor at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

CLONE_SPAN: Final = 10**9  # seq_ids of one clone of a sampling client
CURSORS: Final = 1 << 28  # that one server gives out
KEPT: Final = 100_000  # completions without an acknowledgement


@dataclass(frozen=True, slots=True)
class SampleCompletion:
    cursor: int
    request_id: str
    size_bytes: int
    is_failure: bool


class Feed:
    """``first`` is above all cursors of earlier servers with the same journal; the lowest of those is ``earliest``.

    ``first`` None: the journal is still being read. Such a feed has no news, and takes every cursor.
    """

    def __init__(self, *, first: int | None = 0, earliest: int = 0) -> None:
        self._completions: OrderedDict[str, SampleCompletion] = OrderedDict()
        self._is_open = first is not None
        self._first = first or 0
        self._earliest = earliest
        self._cursor = self._first
        self._news = asyncio.Event()

    def add(self, request_id: str, *, size_bytes: int, is_failure: bool) -> None:
        self._cursor += 1
        self._completions[request_id] = SampleCompletion(self._cursor, request_id, size_bytes, is_failure)
        if len(self._completions) > KEPT:
            self._completions.popitem(last=False)
        self.wake()

    def wake(self) -> None:
        """Answer the clients that wait, also without news."""
        self._news.set()
        self._news = asyncio.Event()

    def acknowledge(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._completions.pop(request_id, None)

    def knows(self, cursor: int) -> bool:
        """Whether the cursor is new, or of a server with the same journal. If not, the client's samples are lost."""
        return not self._is_open or cursor == 0 or self._earliest <= cursor < self._first + CURSORS

    async def after(self, cursor: int, timeout_seconds: float) -> tuple[list[SampleCompletion], int]:
        """What was completed after ``cursor``, and the new cursor; waits for news if there are none.

        A cursor that this feed never gave out is one of an earlier server: it gets everything.
        """
        is_new = cursor == 0 < self._first
        if self._is_open:
            cursor = cursor if self._first <= cursor <= self._cursor else self._first
        news = self._news
        if not self._is_open or (self._cursor == cursor and not is_new):
            try:
                async with asyncio.timeout(timeout_seconds):
                    await news.wait()
            except TimeoutError:
                return [], cursor
        if not self._is_open:
            return [], cursor
        return [c for c in self._completions.values() if c.cursor > cursor], self._cursor
