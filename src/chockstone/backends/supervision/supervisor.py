"""The worker supervisor: starts a worker, sends it calls, and restarts it when it dies or hangs.

A subclass says what a worker is: a child process (``local``) or a group of Ray actors (``ray``).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chockstone.backends.calls import (
    BeatEvent,
    DoneEvent,
    FailedEvent,
    PiecesEvent,
    ReadyEvent,
    ReleasedEvent,
    ReplyT,
    StartFailedEvent,
    StopCall,
    WorkerCall,
    WorkerCalls,
    WorkerEvent,
    decode_event,
    decode_reply,
    encode_call,
    name_of,
)
from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.backends.protocol import (
    OnPieces,
    SampledPiece,
    SamplerStatus,
    WorkerLost,
    WorkerMemory,
    WorkerPhase,
    WorkerStatus,
)
from chockstone.backends.supervision.heartbeat import HeartbeatLimits, HeartbeatMonitor
from chockstone.telemetry import tracing
from chockstone.telemetry.origin import RequestOrigin

log = logging.getLogger(__name__)
_FIRST_DELAY_SECONDS: Final = 0.1
_LONGEST_DELAY_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 300.0  # to finish calls in progress
_KILLED_SECONDS: Final = 5.0  # for a killed worker to end
_LOUD_ATTEMPTS: Final = 3  # failed starts in a row, after which each one is logged as an error
_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGKILL: "SIGKILL, sent manually or by the OOM killer",
    signal.SIGILL: "illegal instruction: this CPU cannot run what it advertises; set ONEDNN_MAX_CPU_ISA=AVX2",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error: a mapped file was cut short, or the disk is full",
    signal.SIGABRT: "aborted by a library",
}


class NotStarted(Exception):
    """A worker could not be started, for a reason that the next attempt would meet, too."""


class WorkerHandle(Protocol):
    """One worker, from its start to its end."""

    async def connect(self) -> AsyncChannel:
        """Wait for the channel to the worker.

        Raises ChannelClosed if the worker ended before, and NotStarted if the next worker would end before, too.
        """

    def kill(self) -> None:
        """Kill the worker and close its channel."""

    async def ended(self) -> str:
        """Wait until the worker has ended, after its channel has closed. Returns how it ended, in words."""


@dataclass(slots=True)
class _Pending:
    reply: asyncio.Future[Message]
    on_release: Callable[[], None]
    on_pieces: OnPieces
    is_sent: bool  # at least in part


class WorkerSupervisor(WorkerCalls):
    """Sends calls to one worker at a time.

    When a worker dies, its calls fail with WorkerLost and the next worker is started. A worker that hangs is killed
    first. The delay before the next start is short if the last worker answered a call. It doubles for each worker in
    a row that died before that.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_fatal: Callable[[str], None] = lambda _: None,
        heartbeat_limits: HeartbeatLimits | None = None,
        clock: Callable[[], float] = time.time,
        generations: Iterator[int] | None = None,
    ) -> None:
        """``on_lost`` gets the reason of each death; ``on_fatal`` the reason why no worker will be started again.

        ``generations`` numbers the workers that become ready. Replicas share one, so that no two have the same number.
        """
        self._on_lost = on_lost
        self._on_fatal = on_fatal
        self._heartbeat_limits = heartbeat_limits or HeartbeatLimits()
        self._clock = clock
        self._since = clock()  # when the phase began
        self._deaths = 0
        self._last_death: str | None = None
        self._last_death_at: float | None = None
        self._memory = WorkerMemory()
        self._sampler: SamplerStatus | None = None
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._channel: AsyncChannel | None = None
        self._handle: WorkerHandle | None = None
        self._ready = asyncio.Event()
        self._supervising: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_over = False  # no worker will be started again
        self._has_answered = False  # the present worker
        self._was_ready = False  # the present worker
        self.trouble: str | None = None  # why no worker becomes ready, if several in a row did not
        self.generation = 0
        self._generations = generations or itertools.count(1)
        self.environment: Mapping[str, Any] = {}  # Any: plain JSON; of the newest worker that became ready

    @abc.abstractmethod
    def _start_worker(self) -> WorkerHandle:
        """Start a worker. Raises OSError if that is not possible at the moment."""

    async def start(self) -> None:
        self._supervising = asyncio.create_task(self._supervise())

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._channel is not None

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus(
            phase=self._phase(),
            since=self._since,
            deaths=self._deaths,
            last_death=self._last_death,
            last_death_at=self._last_death_at,
            memory=self._memory,
            sampler=self._sampler,
        )

    def _phase(self) -> WorkerPhase:
        if self._is_over:
            return "stopped"
        if self.is_ready:
            return "ready"
        if self.trouble is not None:
            return "failing"
        return "restarting" if self.generation else "starting"

    async def ready(self) -> None:
        while not self.is_ready:
            if self._is_over:
                raise WorkerLost("the worker is not running, and will not be started again")
            await self._ready.wait()

    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,
        generation: int | None = None,
    ) -> ReplyT:
        """Send the call as soon as the worker is ready, and wait for its reply."""
        await self.ready()
        channel = self._channel
        assert channel is not None, "a worker that is ready has a channel"
        if generation not in (None, self.generation):
            raise WorkerLost(
                "the worker that this was meant for is gone, and the next one knows nothing of it", code="unsent"
            )
        number = next(self._numbers)
        is_sent = not channel.is_closed
        pending = _Pending(asyncio.get_running_loop().create_future(), on_release, on_pieces, is_sent)
        self._pending[number] = pending
        try:
            with tracing.span("worker.call", call=name_of(call), generation=self.generation):
                with contextlib.suppress(
                    ChannelClosed
                ):  # the reply raises WorkerLost once it is known how the worker ended
                    await channel.send(encode_call(number, call, RequestOrigin.here()))
                return decode_reply(reply, await pending.reply)
        finally:
            self._pending.pop(number, None)

    async def stop(self) -> None:
        """Let the worker finish the calls in progress, then end it."""
        self._is_stopping = True
        if self._supervising is None:
            return
        if self._handle is not None:
            if not self._ready.is_set():
                self._handle.kill()  # it still loads models and has no calls to finish
            if self._channel is not None:
                with contextlib.suppress(ChannelClosed):
                    await self._channel.send(encode_call(next(self._numbers), StopCall()))
            await asyncio.wait({self._supervising}, timeout=_STOP_SECONDS)
        if self._handle is not None:
            self._handle.kill()
        await asyncio.wait({self._supervising}, timeout=0 if self._handle is None else _KILLED_SECONDS)
        self._supervising.cancel()  # it waits to start the next worker, or for one that cannot be killed
        await asyncio.gather(self._supervising, return_exceptions=True)

    def kill(self) -> None:
        """Kill the worker and start no other."""
        self._is_stopping = True
        if self._handle is not None:
            self._handle.kill()

    async def _supervise(self) -> None:
        try:
            await self._run_workers()
        except Exception as error:
            log.exception("worker supervision failed")
            self._is_stopping = True
            self._on_fatal(f"the worker cannot be kept running: {type(error).__name__}: {error}")
        finally:
            self._is_over = True
            self._since = self._clock()
            self._lose_calls("the worker was stopped")
            self._ready.set()  # wakes ``ready``, which raises WorkerLost

    async def _run_workers(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        attempts = 0
        while not self._is_stopping:
            self._has_answered = self._was_ready = False
            reason = await self._run_worker()
            self._lose_calls(reason)
            if self._is_stopping:
                return
            log.error("worker died reason=%s", reason)
            self._deaths += 1
            self._last_death, self._last_death_at = reason, self._clock()
            self._on_lost(reason)
            delay = _FIRST_DELAY_SECONDS if self._has_answered else delay
            attempts = self._note_attempt(attempts, reason, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _note_attempt(self, attempts: int, reason: str, delay: float) -> int:
        """Returns how many workers in a row died before they were ready."""
        if self._was_ready:
            return 0
        attempts += 1
        if attempts >= _LOUD_ATTEMPTS:
            self.trouble = f"the worker died {attempts} times before it was ready, the last time because {reason}"
            log.error(
                "worker not ready attempts=%d retry_seconds=%.1f reason=%s; the worker's output above may say why. "
                "The server keeps trying; requests that need the worker wait",
                attempts,
                delay,
                reason,
            )
        return attempts

    def _lose_calls(self, reason: str) -> None:
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(WorkerLost(reason, code=None if pending.is_sent else "unsent"))

    async def _run_worker(self) -> str:
        """Run one worker from its start to its end. Returns how it ended."""
        try:
            handle = self._handle = self._start_worker()
        except OSError as error:  # for example too many open files
            return f"the worker process could not be started: {error}"
        monitor = HeartbeatMonitor(self._heartbeat_limits)
        watching = asyncio.create_task(self._kill_if_hung(handle, monitor))
        try:
            await self._receive_events(handle, monitor)
        except NotStarted as error:
            if not self.generation:  # else a worker did start once, and may again
                self._is_stopping = True
                self._on_fatal(str(error))
        except ChannelClosed:
            pass
        finally:
            watching.cancel()
            if self.is_ready:
                self._since = self._clock()
            self._ready.clear()  # from here on calls wait for the next worker, however long this one takes to end
            self._channel = None
            self._memory, self._sampler = WorkerMemory(), None
        reason = await handle.ended()
        self._handle = None
        return reason if monitor.verdict is None else f"the worker process hung: {monitor.verdict}"

    async def _receive_events(self, handle: WorkerHandle, monitor: HeartbeatMonitor) -> None:
        """Until the channel closes, which raises ChannelClosed."""
        channel = self._channel = await handle.connect()
        if self._is_stopping:
            channel.close()  # it connected too late to be sent a stop
        try:
            while True:
                event = decode_event(await channel.receive())
                monitor.hear(event)
                self._take(event)
        finally:
            channel.close()

    async def _kill_if_hung(self, handle: WorkerHandle, monitor: HeartbeatMonitor) -> None:
        """From the moment the worker is ready: there is no limit on how long it may load models."""
        await self._ready.wait()
        is_alive = True
        while is_alive:
            await asyncio.sleep(self._heartbeat_limits.check_seconds)
            is_alive = monitor.check()
        handle.kill()

    def _take(self, event: WorkerEvent) -> None:
        match event:
            case ReadyEvent():
                self.environment = event.environment
                self.generation = next(self._generations)
                self._was_ready, self.trouble = True, None
                self._ready.set()
                self._since = self._clock()
                log.info("worker ready generation=%d", self.generation)
            case StartFailedEvent():
                self._is_stopping = True
                self._on_fatal(event.error)
            case BeatEvent():
                self._memory, self._sampler = event.memory, event.sampler
            case PiecesEvent():
                self._deliver(event)
            case ReleasedEvent() | DoneEvent() | FailedEvent():
                self._has_answered = True
                pending = self._pending.get(event.number)
                if pending is not None and not pending.reply.done():  # else the caller has stopped waiting
                    _settle(pending, event)

    def _deliver(self, event: PiecesEvent) -> None:
        by_call: dict[int, list[SampledPiece]] = {}
        for number, piece in zip(event.numbers, event.pieces, strict=True):
            by_call.setdefault(number, []).append(piece)
        for number, pieces in by_call.items():
            if (pending := self._pending.get(number)) is not None:  # else the caller has stopped waiting
                pending.on_pieces(pieces)


def _settle(pending: _Pending, event: ReleasedEvent | DoneEvent | FailedEvent) -> None:
    match event:
        case ReleasedEvent():
            pending.on_release()
        case DoneEvent():
            pending.reply.set_result(event.reply)
        case FailedEvent():
            pending.reply.set_exception(event.error)


def describe_exit(code: int) -> str:
    """The exit code of a process, in words."""
    if code >= 0:
        return f"exit code {code}"
    meaning = _SIGNALS.get(-code)
    return f"signal {-code} ({meaning})" if meaning else f"signal {-code}"
