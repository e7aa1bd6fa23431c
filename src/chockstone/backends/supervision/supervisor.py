"""The keeper: calls to a worker that is kept running, wherever it runs.

What a worker is, is its backend's affair: a child process (``local``) or a group of Ray's (``ray``).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chockstone.backends.calls import (
    BeatEvent,
    DoneEvent,
    FailedEvent,
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
)
from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.backends.protocol import WorkerLost
from chockstone.backends.supervision.heartbeat import HeartbeatLimits, Watch

log = logging.getLogger(__name__)
_FIRST_DELAY_SECONDS: Final = 0.1
_LONGEST_DELAY_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 300.0  # to finish what is under way
_LAST_WORDS_SECONDS: Final = 5.0
_LOUD_ATTEMPTS: Final = 3  # to start, after which more is said of each that fails
_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGKILL: "killed by hand or for want of memory",
    signal.SIGILL: "illegal instruction: this CPU cannot run what it advertises; set ONEDNN_MAX_CPU_ISA=AVX2",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error: a mapped file was cut short, or the disk is full",
    signal.SIGABRT: "aborted by a library",
}


class NotStarted(Exception):
    """A worker ended before there was a way to it, for a reason that will not pass by itself."""


class WorkerHandle(Protocol):
    """One worker, from its start to its end."""

    async def connect(self) -> AsyncChannel:
        """The way to it. Raises ChannelClosed if it ended first; NotStarted if the next one would, too."""

    def kill(self) -> None:
        """At once; its channel, if there is one, closes."""

    async def ended(self) -> str:
        """Wait until it has, now that its channel is closed; how, in words."""


@dataclass(slots=True)
class _Pending:
    reply: asyncio.Future[Message]
    on_release: Callable[[], None]
    is_sent: bool  # or some of it


class WorkerSupervisor(WorkerCalls):
    """Calls to a worker. One that dies fails its calls with WorkerLost, and the next one is started.

    One that is hung is killed, which is a death like any other. The next one starts soon if the last
    one was of use, and later and later while they die before they have answered anything.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_hopeless: Callable[[str], None] = lambda _: None,
        patience: HeartbeatLimits | None = None,
    ) -> None:
        """``on_lost`` is told of each death; ``on_hopeless`` of a reason for which no worker will ever start."""
        self._on_lost = on_lost
        self._on_hopeless = on_hopeless
        self._patience = patience or HeartbeatLimits()
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._channel: AsyncChannel | None = None
        self._life: WorkerHandle | None = None
        self._ready = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_over = False  # nobody keeps a worker any more
        self._has_answered = False  # the present worker
        self._was_ready = False  # the present worker
        self.trouble: str | None = None  # why no worker gets ready, if several in a row did not
        self.generation = 0
        self.environment: Mapping[str, Any] = {}  # Any: plain JSON; of the newest worker that became ready

    @abc.abstractmethod
    def _begin(self) -> WorkerHandle:
        """Start a worker. Raises OSError when that cannot be done at the moment."""

    async def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._channel is not None

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
        pending = _Pending(asyncio.get_running_loop().create_future(), on_release, is_sent)
        self._pending[number] = pending
        try:
            with contextlib.suppress(ChannelClosed):  # the reply says how the worker ended, once that is known
                await channel.send(encode_call(number, call))
            return decode_reply(reply, await pending.reply)
        finally:
            self._pending.pop(number, None)

    async def stop(self) -> None:
        """Let it finish what is under way, then end it."""
        self._is_stopping = True
        if self._keeping is None:
            return
        if self._life is not None:
            if not self._ready.is_set():
                self._life.kill()  # it still loads, and has nothing to finish
            if self._channel is not None:
                with contextlib.suppress(ChannelClosed):
                    await self._channel.send(encode_call(next(self._numbers), StopCall()))
            await asyncio.wait({self._keeping}, timeout=_STOP_SECONDS)
        if self._life is not None:
            self._life.kill()
        await asyncio.wait({self._keeping}, timeout=0 if self._life is None else _LAST_WORDS_SECONDS)
        self._keeping.cancel()  # it waits to start the next one, or for the end of one that cannot be killed
        await asyncio.gather(self._keeping, return_exceptions=True)

    def kill(self) -> None:
        """End it at once."""
        self._is_stopping = True
        if self._life is not None:
            self._life.kill()

    async def _keep(self) -> None:
        try:
            await self._run_for_ever()
        except Exception as error:
            log.exception("worker not kept")
            self._is_stopping = True
            self._on_hopeless(f"the worker cannot be kept running: {type(error).__name__}: {error}")
        finally:
            self._is_over = True
            self._lose_calls("the worker was stopped")
            self._ready.set()  # whoever waits for a worker that will not come is told so

    async def _run_for_ever(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        attempts = 0
        while not self._is_stopping:
            self._has_answered = self._was_ready = False
            reason = await self._run_once()
            self._lose_calls(reason)
            if self._is_stopping:
                return
            log.error("worker died reason=%s", reason)
            self._on_lost(reason)
            delay = _FIRST_DELAY_SECONDS if self._has_answered else delay
            attempts = self._note_attempt(attempts, reason, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _note_attempt(self, attempts: int, reason: str, delay: float) -> int:
        """How many workers died before they were ready, since the last one that was."""
        if self._was_ready:
            return 0
        attempts += 1
        if attempts >= _LOUD_ATTEMPTS:
            self.trouble = f"the worker died {attempts} times before it was ready, the last time because {reason}"
            log.error(
                "worker not ready attempts=%d retry_seconds=%.1f reason=%s; the worker's output above may say why. "
                "The server goes on trying; requests that need the worker wait",
                attempts,
                delay,
                reason,
            )
        return attempts

    def _lose_calls(self, reason: str) -> None:
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(WorkerLost(reason, code=None if pending.is_sent else "unsent"))

    async def _run_once(self) -> str:
        """One life of a worker; returns how it ended."""
        try:
            life = self._life = self._begin()
        except OSError as error:  # too many files are open, for now
            return f"the worker process could not be started: {error}"
        watch = Watch(self._patience)
        watching = asyncio.create_task(self._keep_watch(life, watch))
        try:
            await self._listen(life, watch)
        except NotStarted as error:
            if not self.generation:  # else it did start once, and may again
                self._is_stopping = True
                self._on_hopeless(str(error))
        except ChannelClosed:
            pass
        finally:
            watching.cancel()
            self._ready.clear()  # from here on calls are for the next one, however long this one takes to end
            self._channel = None
        reason = await life.ended()
        self._life = None
        return reason if watch.verdict is None else f"the worker process hung: {watch.verdict}"

    async def _listen(self, life: WorkerHandle, watch: Watch) -> None:
        """Take what it says until it says no more."""
        channel = self._channel = await life.connect()
        if self._is_stopping:
            channel.close()  # it came too late to be told to stop
        try:
            while True:
                message = await channel.receive()
                event = decode_event(message)
                watch.hear(event)
                self._take(event)
        finally:
            channel.close()

    async def _keep_watch(self, life: WorkerHandle, watch: Watch) -> None:
        """From the moment the worker is ready, for what it takes to load models is anybody's guess."""
        await self._ready.wait()
        is_alive = True
        while is_alive:
            await asyncio.sleep(self._patience.check_seconds)
            is_alive = watch.check()
        life.kill()

    def _take(self, event: WorkerEvent) -> None:
        match event:
            case ReadyEvent():
                self.environment = event.environment
                self.generation += 1
                self._was_ready, self.trouble = True, None
                self._ready.set()
            case StartFailedEvent():
                self._is_stopping = True
                self._on_hopeless(event.error)
            case BeatEvent():
                pass
            case ReleasedEvent() | DoneEvent() | FailedEvent():
                self._has_answered = True
                pending = self._pending.get(event.number)
                if pending is not None and not pending.reply.done():  # else the caller has stopped waiting
                    _settle(pending, event)


def _settle(pending: _Pending, event: ReleasedEvent | DoneEvent | FailedEvent) -> None:
    match event:
        case ReleasedEvent():
            pending.on_release()
        case DoneEvent():
            pending.reply.set_result(event.reply)
        case FailedEvent():
            pending.reply.set_exception(event.error)


def describe_exit(code: int) -> str:
    """Of a process, in words."""
    if code >= 0:
        return f"exit code {code}"
    meaning = _SIGNALS.get(-code)
    return f"signal {-code} ({meaning})" if meaning else f"signal {-code}"
