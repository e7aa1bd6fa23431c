"""Sampling: requests to samplers, which are independent of each other and of any lane.

A sampler is a base model, perhaps with the weights of an archive. Its requests are known by
``(sampling session, seq_id)``, so that a repeat gets the first answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from chockstone.backends.channel import Message
from chockstone.backends.local import WorkerLost
from chockstone.engine.archives import ephemeral_name
from chockstone.engine.backend import Backend
from chockstone.engine.completions import CLONE_SPAN, Feed
from chockstone.engine.futures import Futures, Promise, Result
from chockstone.engine.limits import Busy, Limits
from chockstone.wire.failures import BadRequest, RequestError

log = logging.getLogger(__name__)
_FREED: Final = (
    "the weights of this sampler are gone: it has no name, and was not used while its run made many newer ones. "
    "Make a new one, or save under a name what you come back to."
)
_REMEMBERED: Final = 100_000  # requests whose answer a repeat still gets


@dataclass(frozen=True, slots=True)
class SamplerSource:
    """What a sampling session samples from."""

    sampling_session_id: str
    owner: str
    base_model: str
    archive: str | None  # None: the base model itself

    @property
    def is_unnamed(self) -> bool:
        return self.archive == ephemeral_name(self.sampling_session_id)

    @property
    def session_id(self) -> str:
        return self.sampling_session_id.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Submitted:
    request_id: str
    num_samples: int

    @property
    def sequence_ids(self) -> tuple[str, ...]:
        """Made when asked for: many requests are remembered, and some have thousands."""
        return tuple(f"{self.request_id}-{index}" for index in range(self.num_samples))


@dataclass(frozen=True, slots=True)
class _Request:
    promise: Promise
    source: SamplerSource
    seq_id: int | None
    body: bytes

    @property
    def key(self) -> str:
        return self.promise.request_id

    @property
    def clone(self) -> int:
        return (self.seq_id or 0) // CLONE_SPAN

    @property
    def seed(self) -> int:
        """For a request without a seed of its own: fixed, so that running it again gives the same tokens."""
        name = self.key if self.seq_id is None else f"{self.source.sampling_session_id}/{self.seq_id}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


class Sampling:
    def __init__(self, backend: Backend, futures: Futures, limits: Limits) -> None:
        self._backend = backend
        self._archives: set[str] = set()  # that the worker may hold in memory
        self.on_sampled: Callable[[SamplerSource, int, int], None] = lambda _source, _prompt_tokens, _tokens: None
        self.on_used: Callable[[str], None] = lambda _sampling_session_id: None
        self.on_bad_archive: Callable[[SamplerSource, RequestError], None] = lambda _source, _error: None
        self._futures = futures
        self._limits = limits
        self._seen: OrderedDict[tuple[str, int], Submitted] = OrderedDict()
        self._under_way: dict[str, _Request] = {}  # by request id
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued_bytes = 0
        self._feeds: defaultdict[tuple[str, int], Feed] = defaultdict(Feed)

    def submit(self, source: SamplerSource, seq_id: int | None, body: bytes, *, num_samples: int) -> Submitted:
        """Have ``body`` sampled. Raises Busy when too much is queued."""
        key = None if seq_id is None else (source.sampling_session_id, seq_id)
        if key is not None and (known := self._seen.get(key)) is not None:
            return known
        if len(self._under_way) >= self._limits.samples or self._queued_bytes + len(body) > self._limits.queued_bytes:
            raise Busy(f"{len(self._under_way)} samples are queued; the same request will be taken in a moment")
        request = _Request(self._futures.promise(source.owner), source, seq_id, body)
        submitted = Submitted(request.key, num_samples)
        if key is not None:
            self._seen[key] = submitted
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        if source.archive is not None:
            self._archives.add(source.archive)
            self.on_used(source.sampling_session_id)
        self._under_way[request.key] = request
        self._queued_bytes += len(body)
        self._in_background(self._run(request))
        return submitted

    def feed(self, sampling_session_id: str, clone: int) -> Feed:
        return self._feeds[sampling_session_id, clone]

    def cancel(self, request_id: str) -> None:
        """The client does not want it any more: it ends as a failure at once, and its slots are freed."""
        if (request := self._under_way.get(request_id)) is not None:
            self._end(request, Result.failed(BadRequest("the sample was cancelled")))
            self._in_background(self._tell_cancelled(request_id))

    def forget_feeds(self, sampling_session_ids: set[str]) -> None:
        """The session is over: nobody will ask for these again, and whoever still waits is answered."""
        for key in [key for key in self._feeds if key[0] in sampling_session_ids]:
            self._feeds.pop(key).wake()

    def forget_archive(self, archive: str) -> bool:
        """Nobody will sample from it any more; whether anybody has, so that the worker may hold it in memory."""
        was_used = archive in self._archives
        self._archives.discard(archive)
        return was_used

    def wake_all(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    async def drained(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        return len(self._under_way)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: _Request) -> None:
        try:
            result = await self._sample(request)
        finally:
            self._queued_bytes -= len(request.body)
            del self._under_way[request.key]
        self._end(request, result)

    def _end(self, request: _Request, result: Result) -> None:
        if request.promise.is_done():
            return
        self._futures.settle(request.promise, result)
        self._feeds[request.source.sampling_session_id, request.clone].add(
            request.key, size_bytes=len(result.body), is_failure=result.is_failure
        )

    async def _tell_cancelled(self, key: str) -> None:
        with suppress(RequestError):  # a worker that died has forgotten it anyway
            await self._backend.call("cancel", {"key": key})

    async def _ask(self, values: dict[str, Any], body: bytes) -> Message:
        """Once more if the worker died: the seed is fixed, so nobody can tell. Twice may be the request's own doing."""
        try:
            return await self._backend.call("sample", values, body)
        except WorkerLost:
            return await self._backend.call("sample", values, body)

    async def _sample(self, request: _Request) -> Result:
        source = request.source
        values = {
            "key": request.key,
            "base_model": source.base_model,
            "archive": source.archive,
            "seed": request.seed,
        }
        try:
            reply = await self._ask(values, request.body)
        except RequestError as error:
            if error.code in ("damaged", "missing"):
                self.on_bad_archive(source, error)
            if error.code == "missing" and source.is_unnamed:
                return Result.failed(BadRequest(_FREED))
            return Result.failed(error)
        except Exception as error:  # told to the client, and logged
            log.exception("sample failed sampler=%s", source.sampling_session_id)
            return Result.failed(error)
        self.on_sampled(source, reply.values.get("prompt_tokens", 0), reply.values.get("tokens", 0))
        return Result(reply.body, "sample")
