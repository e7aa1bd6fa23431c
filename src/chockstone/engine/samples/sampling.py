"""Sampling: requests to samplers, which are independent of each other and of any lane.

A sampler is a base model, perhaps with the weights of an archive. Its requests are known by
``(sampling session, seq_id)``, so that a repeat gets the first answer, also from the next server: a
request is on record before its client gets the request id, and a result before its client gets it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chockstone.backends.protocol import SampleReply, Workers
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.futures import Futures, Result
from chockstone.engine.journal.journal import JournalDamaged, JournalError
from chockstone.engine.journal.writer import STALL_SECONDS, Stalled
from chockstone.engine.queue_shares import QueueShares
from chockstone.engine.runs.operations import OperationOutcome
from chockstone.engine.samples.calls import CANCELLED, NoWorker, RecoverWeights, SampleCalls
from chockstone.engine.samples.completions import CURSORS, Feed
from chockstone.engine.samples.journal import FoundSample, SampleJournal
from chockstone.engine.samples.loads import SamplerQueue, SamplerUses
from chockstone.engine.samples.requests import (
    PendingSample,
    SampledTokens,
    SampleFacts,
    SamplerSource,
    Submitted,
    request_id_of,
    seed_of,
)
from chockstone.engine.samples.streams import SampleStream
from chockstone.telemetry import tracing
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.origin import RequestOrigin
from chockstone.telemetry.timings import RecentTimings, WorkTiming
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

__all__ = ["SampleStream", "SamplerSource", "Sampling", "Submitted"]

log = logging.getLogger(__name__)
_FREED: Final = (
    "the weights of this sampler are gone: it has no name, and was not used while its run made many newer ones. "
    "Make a new one, or save under a name what you come back to."
)
_REMEMBERED: Final = 100_000  # requests whose answer a repeat still gets


async def _recover_nothing(_: SamplerSource) -> bool:
    return False


class Sampling:
    """Requests that are submitted wait until ``recover`` has ended. Without a journal nothing outlives the process."""

    def __init__(
        self,
        workers: Workers,
        futures: Futures,
        limits: EngineLimits,
        journal: SampleJournal | None = None,
        suspects: CrashSuspects | None = None,
        *,
        recover_weights: RecoverWeights = _recover_nothing,
        on_sampled: Callable[[SampledTokens, int | None], None] = lambda _used, _sequence: None,
        on_recorded: Callable[[SampledTokens, int], None] | None = None,
        on_used: Callable[[str], None] = lambda _sampling_session_id: None,
        on_bad_archive: Callable[[SamplerSource, RequestError], None] = lambda _source, _error: None,
        on_routed: Callable[[SamplerSource, Mapping[str, bytes]], None] = lambda _source, _records: None,
        instruments: Instruments | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timings: RecentTimings | None = None,
    ) -> None:
        """``on_sampled`` is called with what a sample used, and the sequence of its result if the journal has it;
        ``on_recorded`` with the same of each result of an earlier server, counted or not. After either, the journal
        keeps the result until its ``counted`` is called. ``on_used`` is called with a sampling session that samples
        from an archive, ``on_bad_archive`` when that archive is damaged or missing. ``on_routed`` is called with the
        records of which experts a sample's tokens had, before the client gets the sample. ``timings`` gets each sample
        that ended, by its sampling session."""
        self._workers = workers
        self._archives: set[str] = set()  # that the worker may hold in memory
        self._on_sampled = on_sampled
        self._on_recorded = on_recorded
        self._instruments = instruments or Instruments()
        self._now = now
        self._timings = timings or RecentTimings()
        self._on_used = on_used
        self._on_bad_archive = on_bad_archive
        self._on_routed = on_routed
        self.recovered = asyncio.Event()
        self._problem = "those of the time before the restart are still being read"  # until it is over
        self._futures = futures
        self._limits = limits
        self._journal = journal
        self._calls = SampleCalls(
            workers, limits, suspects or CrashSuspects(), journal, recover_weights=recover_weights
        )
        self._seen: OrderedDict[str, Submitted] = OrderedDict()  # by request id
        self._under_way: dict[str, PendingSample] = {}  # by request id
        self._tasks: set[asyncio.Task[None]] = set()
        self.uses = SamplerUses()
        self._queued = QueueShares(limits.samples)
        self._queued_bytes = QueueShares(limits.queued_bytes)
        self._feeds: defaultdict[tuple[str, int], Feed] = defaultdict(self._new_feed)
        if journal is None:
            self.recovered.set()

    async def recover(self) -> None:
        """Recover the requests of earlier servers: results that clients may fetch, and requests to run again.

        Raises JournalError when their journal cannot be read; then no request is ever taken.
        """
        if self._journal is not None:
            try:
                found = await self._journal.open()
            except JournalError as error:
                self._problem = str(error)
                raise
            self._count_recorded(self._journal)
            self.wake_all()
            self._feeds.clear()  # the cursors of this life are known only now
            for one in found:
                await self._recover_one(self._journal, one)
            log.info("samples recovered found=%d unfinished=%d", len(found), len(self._under_way))
        self.recovered.set()

    async def submit(self, source: SamplerSource, seq_id: int | None, body: bytes, *, num_samples: int) -> Submitted:
        """Have ``body`` sampled. On return the request is durable.

        Raises Busy when too much is queued, Stalled when it could not be written down in time.
        """
        await self._wait_until_recovered()
        request_id = None if seq_id is None else request_id_of(source.sampling_session_id, seq_id)
        submitted = None if request_id is None else self._known(request_id, num_samples)
        if submitted is None:
            submitted = self._take(source, seq_id, request_id, body, num_samples)
        try:
            await self._wait_until_written(submitted.request_id)
        except Stalled:
            if request_id is None:  # a repeat is another request
                self.cancel(submitted.request_id)
            raise
        return submitted

    async def stream(self, source: SamplerSource, body: bytes, *, num_samples: int) -> SampleStream:
        """Have ``body`` sampled, and read the tokens while they are generated.

        Raises Busy and Stalled as ``submit`` does; what the worker refuses, the stream raises. The reader closes the
        stream. A server that ends breaks its streams off, and the next one does not continue them.
        """
        await self._wait_until_recovered()
        submitted = self._take(source, None, None, body, num_samples, is_streamed=True)
        stream = self._under_way[submitted.request_id].stream
        assert stream is not None, "it was asked for"
        try:
            await self._wait_until_written(submitted.request_id)
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def feed(self, sampling_session_id: str, clone: int) -> Feed:
        return self._feeds[sampling_session_id, clone]

    def cancel(self, request_id: str) -> None:
        """The client does not want it any more: it ends as a failure at once, and its slots are freed."""
        request = self._under_way.get(request_id)
        if request is None or request.promise.is_done():
            return
        outcome = OperationOutcome(Result.failed(BadRequest(CANCELLED)))
        if self._journal is not None:
            with suppress(JournalError):  # it is closed already, and the next server will run it in vain
                self._journal.settle(request_id, outcome)
        self._settle(request, outcome.result, operation=None)
        self._in_background(self._tell_cancelled(request_id))

    def forget_feeds(self, sampling_session_ids: set[str]) -> None:
        """Drop the feeds of a finished session.

        Clients that wait are not answered before their time is up: the SDK finishes its session while it still polls
        to acknowledge results, and would log an error if it asked again.
        """
        for key in [key for key in self._feeds if key[0] in sampling_session_ids]:
            del self._feeds[key]

    def forget_archive(self, archive: str) -> bool:
        """No client will sample from it any more. Returns whether one did, so that the worker may hold it in memory."""
        was_used = archive in self._archives
        self._archives.discard(archive)
        return was_used

    def wake_all(self) -> None:
        for feed in self._feeds.values():
            feed.wake()

    async def drained(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Finish the requests in progress. With a journal, slow ones are left to the next server; then it is closed."""
        if self._journal is None:
            await self.drained()
            return
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        left = list(self._under_way)
        for task in self._tasks:
            task.cancel()
        await self.drained()
        if self._workers.is_ready:
            await asyncio.gather(*map(self._tell_cancelled, left))
        await self._journal.close()

    @property
    def waiting(self) -> int:
        return len(self._under_way)

    def queues(self, owner: str | None) -> dict[str, SamplerQueue]:
        """Requests that have not ended, by sampling session; of all users when ``owner`` is None."""
        counts: dict[str, tuple[int, int]] = {}
        for request in self._under_way.values():
            source = request.facts.source
            if owner in (None, source.owner):
                queued, running = counts.get(source.sampling_session_id, (0, 0))
                counts[source.sampling_session_id] = (queued + (not request.is_sent), running + request.is_sent)
        return {key: SamplerQueue(*count) for key, count in counts.items()}

    def count_waiting(self, owner: str | None) -> int:
        """Requests that have not ended; of all users when ``owner`` is None."""
        return self._queued.total if owner is None else self._queued.held_by(owner)

    @property
    def queued_bytes(self) -> int:
        """Size of the bodies of all requests that have no result yet."""
        return self._queued_bytes.total

    async def _wait_until_recovered(self) -> None:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self.recovered.wait()
        except TimeoutError:
            raise Stalled(f"samples cannot be taken: {self._problem}. Send it again.") from None

    async def _wait_until_written(self, request_id: str) -> None:
        request = self._under_way.get(request_id)
        if self._journal is not None and request is not None and request.written is not None:
            await self._journal.wait(request.written)

    def _known(self, request_id: str, num_samples: int) -> Submitted | None:
        if (seen := self._seen.get(request_id)) is not None:
            return seen
        return None if self._futures.get(request_id) is None else Submitted(request_id, num_samples)

    def _take(
        self,
        source: SamplerSource,
        seq_id: int | None,
        request_id: str | None,
        body: bytes,
        num_samples: int,
        *,
        is_streamed: bool = False,
    ) -> Submitted:
        owner = source.owner
        if not self._queued.has_room(owner, 1) or not self._queued_bytes.has_room(owner, len(body)):
            raise Busy(
                f"{self._queued.held_by(owner)} of your samples are queued, and {self._queued.total} in all; "
                f"the same request will be taken in a moment"
            )
        promise = self._futures.promise(source.owner, request_id)
        seed = seed_of(promise.request_id, source, seq_id)
        origin = RequestOrigin.here()
        facts = SampleFacts(promise.request_id, source, seq_id, num_samples, seed, origin, is_streamed=is_streamed)
        request = PendingSample(promise, facts, body)
        if is_streamed:
            request.stream = SampleStream(facts.request_id, close=partial(self._close_stream, facts.request_id))
        if self._journal is not None:
            request.written = self._journal.add(facts, body)
        self._start(request)
        return self._remember(facts)

    def _count_recorded(self, journal: SampleJournal) -> None:
        for sequence, used in journal.recorded.items():
            if self._on_recorded is None:
                journal.counted(sequence)
            else:
                self._on_recorded(used, sequence)
        journal.recorded.clear()

    async def _recover_one(self, journal: SampleJournal, found: FoundSample) -> None:
        facts = found.facts
        if facts.is_streamed:
            journal.gone(facts.request_id)
            return
        self._remember(facts)
        if (result := await journal.read_result(found)) is not None:
            promise = self._futures.recover(facts.source.owner, facts.request_id, result)
            promise.when_gone(partial(journal.gone, facts.request_id))
            self._announce(facts, result)
            return
        failure: RequestError | None = None
        try:
            body = await journal.read_body(found)
        except JournalDamaged as damage:
            body, failure = b"", ServerFailure(f"the request was lost with its record: {damage}. Submit it again.")
        promise = self._futures.promise(facts.source.owner, facts.request_id)
        request = PendingSample(promise, facts, body, counts_as_suspect=False)
        request.deaths, request.server_deaths = found.deaths, found.server_deaths
        with facts.origin.resumed():
            self._start(request, failure)

    def _remember(self, facts: SampleFacts) -> Submitted:
        submitted = Submitted(facts.request_id, facts.num_samples)
        if facts.seq_id is not None:
            self._seen[facts.request_id] = submitted
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return submitted

    def _start(self, request: PendingSample, failure: RequestError | None = None) -> None:
        """Run it, or have it end with the failure."""
        source = request.facts.source
        request.queued_at = time.time()
        if self._journal is not None:
            request.promise.when_gone(partial(self._journal.gone, request.request_id))
        if source.archive is not None:
            self._archives.add(source.archive)
            self._on_used(source.sampling_session_id)
        self._under_way[request.request_id] = request
        self._queued.add(source.owner, 1)
        self._queued_bytes.add(source.owner, len(request.body))
        self._in_background(self._run(request, failure))

    def _new_feed(self) -> Feed:
        if self._journal is None:
            return Feed()
        if not self._journal.is_open:
            return Feed(first=None)
        return Feed(first=self._journal.life * CURSORS, earliest=self._journal.first_life * CURSORS)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: PendingSample, failure: RequestError | None) -> None:
        facts = request.facts
        with tracing.span("operation.sample", sampler=facts.source.sampling_session_id, request=facts.request_id):
            await self._run_to_its_end(request, failure)

    async def _run_to_its_end(self, request: PendingSample, failure: RequestError | None) -> None:
        started = time.perf_counter()
        try:
            if request.written is not None:
                await asyncio.shield(request.written)  # a request that is not on record may not kill the worker
            outcome = await self._sample(request) if failure is None else OperationOutcome(Result.failed(failure))
            await self._end(request, outcome)
            self._measure(outcome, seconds=time.perf_counter() - started)
        except (NoWorker, JournalError) as reason:
            self._leave(request, str(reason))
        except asyncio.CancelledError:
            self._leave(request, "the server stops")
            raise
        except Exception as error:  # reported to the client, unless it has a result
            log.exception("sample not ended request=%s", request.request_id)
            self._settle(request, Result.failed(error))
        finally:
            self._queued.remove(request.facts.source.owner, 1)
            self._queued_bytes.remove(request.facts.source.owner, len(request.body))
            del self._under_way[request.request_id]

    async def _end(self, request: PendingSample, outcome: OperationOutcome) -> None:
        """Sends the result once it is on record: a client that asks again, also another server, gets the same."""
        used = SampledTokens.from_json(outcome.facts)
        self.uses.note(request.facts.source.sampling_session_id, used, at=self._now())
        count = None if used is None else partial(self._on_sampled, used)
        if self._journal is not None and not request.promise.is_done():
            await asyncio.shield(self._journal.settle(request.request_id, outcome, on_recorded=count))
        elif count is not None:
            count(None)
        self._settle(request, outcome.result)

    def _measure(self, outcome: OperationOutcome, *, seconds: float) -> None:
        self._instruments.operation_ended("sample", outcome.result.outcome, seconds=seconds)
        if (used := SampledTokens.from_json(outcome.facts)) is not None:
            self._instruments.sampled(prompt_tokens=used.prompt_tokens, tokens=used.tokens)

    def _leave(self, request: PendingSample, reason: str) -> None:
        """This server ends before the sample does; the next one runs it again, with nothing held against it."""
        if self._journal is None or request.stream is not None:
            self._settle(request, Result.failed(ServerFailure(f"the sample was not finished: {reason}")))
        elif request.counts_as_suspect and not request.promise.is_done():
            with suppress(JournalError):  # it is closed already
                self._journal.spare(request.request_id)

    def _settle(self, request: PendingSample, result: Result, *, operation: str | None = "sample") -> None:
        if not request.promise.is_done():
            self._futures.settle(request.promise, result, operation=operation)
            if request.stream is None:
                self._announce(request.facts, result)
            else:
                request.stream.end(result)

    def _announce(self, facts: SampleFacts, result: Result) -> None:
        self._feeds[facts.feed].add(facts.request_id, size_bytes=len(result.body), is_failure=result.is_failure)

    def _close_stream(self, request_id: str) -> None:
        self.cancel(request_id)
        self._futures.forget(request_id)

    async def _tell_cancelled(self, request_id: str) -> None:
        with suppress(RequestError):  # a worker that died has forgotten it anyway
            await self._workers.cancel(request_id)

    async def _sample(self, request: PendingSample) -> OperationOutcome:
        source = request.facts.source
        try:
            reply = await self._calls.ask(request)
        except RequestError as error:
            if error.code in ("damaged", "missing"):
                self._on_bad_archive(source, error)
            if error.code == "missing" and source.is_anonymous:
                return OperationOutcome(Result.failed(BadRequest(_FREED)))
            return OperationOutcome(Result.failed(error))
        except (NoWorker, JournalError):
            raise
        except Exception as error:  # reported to the client, and logged
            log.exception("sample failed sampler=%s", source.sampling_session_id)
            return OperationOutcome(Result.failed(error))
        ended_at = int(self._now().timestamp())
        self._note_timing(request, reply)
        if reply.routing:
            self._on_routed(source, reply.records)
        used = SampledTokens(
            source.owner, source.session_id, source.base_model, reply.prompt_tokens, reply.tokens, ended_at
        )
        return OperationOutcome(Result(reply.result, "sample"), used.to_json())

    def _note_timing(self, request: PendingSample, reply: SampleReply) -> None:
        details: dict[str, str | int | float] = {
            "request": request.request_id,
            "tokens": reply.tokens,
            "prompt_tokens": reply.prompt_tokens,
        }
        timing = WorkTiming("sample", request.queued_at, request.begun_at, time.time(), details=details)
        self._timings.add(request.facts.source.sampling_session_id, timing)
