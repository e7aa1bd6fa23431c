"""Sample calls: sends one request to the worker until it is answered, even if workers die.

The seed of a request is fixed, so a second run gives the same tokens. A request that runs each time the worker dies is
the probable cause, and fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from chockstone.backends.protocol import SampleCall, SampleReply, WorkerLost, Workers
from chockstone.engine.config import EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.samples.journal import SampleJournal
from chockstone.engine.samples.requests import PendingSample, SamplerSource
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

log = logging.getLogger(__name__)
CANCELLED: Final = "the sample was cancelled"
_GROUP: Final = "samples"
RecoverWeights = Callable[[SamplerSource], Awaitable[bool]]
"""Asked when weights are missing: whether they may exist now, because the run that made them was replayed."""


class NoWorker(Exception):
    """There is no worker, and there will be none: this server is about to end."""


class SampleCalls:
    def __init__(
        self,
        workers: Workers,
        limits: EngineLimits,
        suspects: CrashSuspects,
        journal: SampleJournal | None,
        *,
        recover_weights: RecoverWeights,
    ) -> None:
        self._recover_weights = recover_weights
        self._workers = workers
        self._limits = limits
        self._suspects = suspects
        self._journal = journal

    async def ask(self, request: PendingSample) -> SampleReply:
        """Raises RequestError as the worker gave it, or because the request killed too many; NoWorker; JournalError."""
        if request.server_deaths >= self._limits.attempts:
            raise ServerFailure(
                f"the sample was under way when the server died, {request.server_deaths} times, and is not tried again"
            )
        reason = "before the server was restarted"
        may_be_recovered = True
        while request.deaths < self._limits.deaths:
            try:
                return await self._ask_once(request)
            except WorkerLost as error:
                await self._wait_for_worker()  # one that was stopped did not die
                reason = str(error)
                request.deaths += error.code != "unsent"
                request.counts_as_suspect = request.counts_as_suspect and error.code == "unsent"
                may_be_recovered = True
                log.warning("worker lost request=%s deaths=%d reason=%s", request.request_id, request.deaths, reason)
            except RequestError as error:
                if error.code != "missing" or not may_be_recovered:
                    raise
                if not await self._recover_weights(request.facts.source):
                    raise
                may_be_recovered = False
        raise ServerFailure(
            f"the sample killed the worker {request.deaths} times, and is not tried again. The last time: {reason}"
        )

    async def _ask_once(self, request: PendingSample) -> SampleReply:
        async with self._turn(request):
            await self._wait_for_worker()
            if request.promise.is_done():
                raise BadRequest(CANCELLED)
            if self._journal is not None and not request.counts_as_suspect:
                request.counts_as_suspect = True
                await asyncio.shield(self._journal.attempt(request.request_id, deaths=request.deaths))
            source = request.facts.source
            call = SampleCall(
                key=request.request_id,
                owner=source.owner,
                base_model=source.base_model,
                archive=source.archive,
                seal=source.seal,
                seed=request.facts.seed,
                body=request.body,
                is_streamed=request.stream is not None,
            )
            request.is_sent, request.begun_at = True, time.time()
            try:
                if request.stream is None:
                    return await self._workers.sample(call)
                return await self._workers.sample(call, on_pieces=request.stream.take)
            finally:
                request.is_sent = False

    def _turn(self, request: PendingSample) -> AbstractAsyncContextManager[None]:
        """A first death proves little against the many that were there; they may continue together."""
        match request.deaths + request.server_deaths:
            case 0:
                return nullcontext()
            case 1:
                return self._suspects.together(_GROUP)
            case _:
                return self._suspects.alone()

    async def _wait_for_worker(self) -> None:
        try:
            await self._workers.ready()
        except WorkerLost as error:
            raise NoWorker(str(error)) from error
