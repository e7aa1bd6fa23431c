"""Futures: results that were promised, and the clients that wait for them.

Everything lives on one event loop, so nothing here is locked. A result stays until it was delivered
and a grace period has passed, or until newer results need its memory, delivered ones first; after
that its id is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from chockstone.wire.failures import Failure

GRACE_SECONDS: Final = 600.0  # a lost answer is polled again
LIMIT_BYTES: Final = 1 << 30
OVERHEAD_BYTES: Final = 1 << 10  # of what stands around a body, however small that is
Form = Literal["json", "pass", "sample"]  # the latter two are protobuf


@dataclass(frozen=True, slots=True)
class Result:
    """The bytes a client will get, encoded once."""

    body: bytes
    form: Form = "json"
    is_failure: bool = False

    @classmethod
    def failed(cls, error: BaseException) -> Result:
        return cls(Failure.of(error).encode(), is_failure=True)


@dataclass(slots=True, eq=False)
class Promise:
    """One request's result, there or still to come."""

    request_id: str
    owner: str
    result: Result | None = None
    delivered_at: float | None = None
    _done: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_seconds: float) -> Result | None:
        """The result, or None when it is not there in time."""
        if self.result is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._done.wait()
        return self.result

    def is_done(self) -> bool:
        return self.result is not None

    def _settle(self, result: Result) -> None:
        self.result = result
        self._done.set()


class Futures:
    """The promises of one server process."""

    def __init__(self, *, now: Callable[[], float], limit_bytes: int = LIMIT_BYTES) -> None:
        self._now = now
        self._limit = limit_bytes
        self._boot = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._promises: dict[str, Promise] = {}
        self._settled: OrderedDict[str, int] = OrderedDict()  # request id → bytes held, oldest first
        self._delivered: OrderedDict[str, float] = OrderedDict()  # request id → when, longest ago first
        self._bytes = 0

    def promise(self, owner: str) -> Promise:
        promise = Promise(f"{self._boot}-{next(self._numbers):x}-{secrets.token_hex(4)}", owner)
        self._promises[promise.request_id] = promise
        return promise

    def withdraw(self, promise: Promise) -> None:
        """The request was not taken after all; its id was never told."""
        del self._promises[promise.request_id]

    def disown(self, request_id: str) -> None:
        """Nobody was told this id or will ask for it: its result is dropped when it comes."""
        if request_id in self._settled:
            self.forget(request_id)
        else:
            self._promises.pop(request_id, None)

    def settle(self, promise: Promise, result: Result) -> None:
        """Give the promise its result and wake whoever waits. The first result stands."""
        if promise.is_done():
            return
        promise._settle(result)
        if promise.request_id not in self._promises:
            return  # nobody will ask for it
        size = len(result.body) + OVERHEAD_BYTES
        self._settled[promise.request_id] = size
        self._bytes += size
        self._trim()

    def get(self, request_id: str) -> Promise | None:
        return self._promises.get(request_id)

    def was_ours(self, request_id: str) -> bool:
        """Whether some server of ours gave this id out, as far as its form tells."""
        parts = request_id.split("-")
        return len(parts) == 3 and all(part and set(part) <= set("0123456789abcdef") for part in parts)

    def delivered(self, promise: Promise) -> None:
        promise.delivered_at = self._now()
        if promise.request_id in self._settled:
            self._delivered[promise.request_id] = promise.delivered_at
            self._delivered.move_to_end(promise.request_id)

    def forget(self, request_id: str) -> None:
        """The client has it and will not ask again."""
        if (size := self._settled.pop(request_id, None)) is not None:
            self._bytes -= size
            self._delivered.pop(request_id, None)
            del self._promises[request_id]

    async def collected(self, timeout_seconds: float) -> None:
        """Until every result was delivered, or time is up: for a server that is about to end."""
        deadline = self._now() + timeout_seconds
        while self._now() < deadline and any(promise.delivered_at is None for promise in self._promises.values()):
            await asyncio.sleep(0.05)

    def pending(self) -> int:
        return len(self._promises) - len(self._settled)

    def _trim(self) -> None:
        horizon = self._now() - GRACE_SECONDS
        while self._delivered and next(iter(self._delivered.values())) <= horizon:
            self.forget(next(iter(self._delivered)))
        while self._bytes > self._limit and len(self._settled) > 1:  # the newest is still to be fetched
            self.forget(next(iter(self._delivered or self._settled)))
