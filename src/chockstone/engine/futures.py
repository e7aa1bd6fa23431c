"""Futures: results that were promised, and the clients that wait for them.

Everything lives on one event loop, so nothing here is locked. A result stays until it was delivered
and a grace period has passed, or until newer results need its memory, delivered ones first; after
that its id is gone. Ids are derived from what was asked where that has a number, so that they mean
the same to the next server.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from chockstone.engine.failure_log import RequestFailure
from chockstone.telemetry.instruments import Outcome
from chockstone.wire.failures import Failure

GRACE_SECONDS: Final = 600.0  # a lost answer is polled again
KEPT_SECONDS: Final = 60.0  # after its delivery, a result survives this server
LIMIT_BYTES: Final = 1 << 30
OVERHEAD_BYTES: Final = 1 << 10  # of what stands around a body, however small that is
_RANDOM: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+\Z")
_DERIVED: Final = re.compile(r"[^:]+:(?:(?:train|sample):\d+:\d+|loss:\d+)\Z")
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

    @property
    def outcome(self) -> Outcome:
        """Whether it is a failure, and whose."""
        if not self.is_failure:
            return "ok"
        return "user_error" if Failure.decode(self.body).category == "user" else "server_error"


@dataclass(slots=True, eq=False)
class Promise:
    """One request's result, there or still to come."""

    request_id: str
    owner: str
    result: Result | None = None
    delivered_at: float | None = None
    _gone_callback: Callable[[], None] | None = None
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

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call this once, when no client needs the result any more. Replaces an earlier callback."""
        self._gone_callback = callback

    def _settle(self, result: Result) -> None:
        self.result = result
        self._done.set()

    def _let_go(self) -> None:
        if (callback := self._gone_callback) is not None:
            self._gone_callback = None
            callback()


class Futures:
    """The promises of one server process."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        limit_bytes: int = LIMIT_BYTES,
        on_failure: Callable[[RequestFailure], None] = lambda _: None,
    ) -> None:
        """``on_failure`` is called with each request that was accepted and failed."""
        self._on_failure = on_failure
        self._now = now
        self._limit = limit_bytes
        self._boot = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._promises: dict[str, Promise] = {}
        self._settled: OrderedDict[str, int] = OrderedDict()  # request id → bytes held, oldest first
        self._delivered: OrderedDict[str, float] = OrderedDict()  # request id → when, longest ago first
        self._leaving: deque[tuple[float, Promise]] = deque()  # delivered; their journals keep them a while longer
        self._bytes = 0

    def promise(self, owner: str, request_id: str | None = None) -> Promise:
        """With a given id, or a new one. Of two promises with one id the later counts."""
        promise = Promise(request_id or f"{self._boot}-{next(self._numbers):x}-{secrets.token_hex(4)}", owner)
        self.forget(promise.request_id)
        self._promises[promise.request_id] = promise
        return promise

    def recover(self, owner: str, request_id: str, result: Result) -> Promise:
        """A result of an earlier server. It may not have been delivered, so it is kept as if it just was."""
        promise = self.promise(owner, request_id)
        self.settle(promise, result)
        self.delivered(promise)
        return promise

    def disown(self, request_id: str) -> None:
        """No client knows this id: its result is dropped when it comes."""
        if request_id in self._settled:
            self.forget(request_id)
        else:
            self._promises.pop(request_id, None)

    def settle(self, promise: Promise, result: Result, *, operation: str | None = None) -> None:
        """Give the promise its result and wake the clients that wait. The first result counts.

        ``operation`` is what the client asked for, to report a failure of it; None: a failure is no news.
        """
        if promise.is_done():
            return
        promise._settle(result)
        if result.is_failure and operation is not None:
            failure = Failure.decode(result.body)
            self._on_failure(
                RequestFailure(
                    route=operation,
                    status=failure.category,
                    reason=failure.error,
                    owner=promise.owner,
                    request_id=promise.request_id,
                )
            )
        if self._promises.get(promise.request_id) is not promise:
            promise._let_go()
            return  # no client will ask for it
        size = len(result.body) + OVERHEAD_BYTES
        self._settled[promise.request_id] = size
        self._bytes += size
        self._trim()

    def get(self, request_id: str) -> Promise | None:
        return self._promises.get(request_id)

    def was_ours(self, request_id: str) -> bool:
        """Whether some server of ours gave this id out, as far as its form tells."""
        return (_DERIVED.match(request_id) or _RANDOM.match(request_id)) is not None

    def delivered(self, promise: Promise) -> None:
        if promise.delivered_at is None:
            self._leaving.append((self._now(), promise))
        promise.delivered_at = self._now()
        if promise.request_id in self._settled:
            self._delivered[promise.request_id] = promise.delivered_at
            self._delivered.move_to_end(promise.request_id)

    def forget(self, request_id: str) -> None:
        """The client has it and will not ask again."""
        if (size := self._settled.pop(request_id, None)) is not None:
            self._bytes -= size
            self._delivered.pop(request_id, None)
            self._promises.pop(request_id)._let_go()

    def tidy(self) -> None:
        """Let go of what was delivered long ago; to be called now and then."""
        self._trim()

    async def collected(self, timeout_seconds: float) -> None:
        """Until every result that is there was delivered, or time is up: for a server that is about to end."""
        deadline = self._now() + timeout_seconds
        while self._now() < deadline and any(self._promises[key].delivered_at is None for key in self._settled):
            await asyncio.sleep(0.05)

    def pending(self) -> int:
        return len(self._promises) - len(self._settled)

    def _trim(self) -> None:
        while self._leaving and self._leaving[0][0] <= self._now() - KEPT_SECONDS:
            self._leaving.popleft()[1]._let_go()
        horizon = self._now() - GRACE_SECONDS
        while self._delivered and next(iter(self._delivered.values())) <= horizon:
            self.forget(next(iter(self._delivered)))
        while self._bytes > self._limit and len(self._settled) > 1:  # the newest is still to be fetched
            self.forget(next(iter(self._delivered or self._settled)))
