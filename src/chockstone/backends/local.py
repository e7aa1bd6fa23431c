"""The local backend: one child process that holds the models, started and restarted from here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.backends.heartbeat import BEAT, Patience, Watch
from chockstone.backends.process import COMMAND, WorkerConfig, WorkerProcess, spawn_worker
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

log = logging.getLogger(__name__)
_FIRST_DELAY_SECONDS: Final = 0.1
_LONGEST_DELAY_SECONDS: Final = 30.0
_LAST_WORDS_SECONDS: Final = 5.0
_FIRST_ATTEMPTS: Final = 3  # to start, until one has ever been ready
_PATIENCE: Final = Patience()
_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGKILL: "killed by hand or for want of memory",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error: a mapped file was cut short, or the disk is full",
    signal.SIGABRT: "aborted by a library",
}


class WorkerLost(ServerFailure):
    """The process died while it worked on this call, or before it could start.

    With the code ``unsent`` it never heard of the call, and cannot have died of it.
    """


@dataclass(slots=True)
class _Pending:
    reply: asyncio.Future[Message]
    on_release: Callable[[], None]


class LocalBackend:
    """Calls to a child process. A process that dies fails its calls with WorkerLost and is started again.

    One that is hung is killed, which is a death like any other. The next one starts soon if the last
    one was of use, and later and later while they die before they have answered anything.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_hopeless: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
        first: WorkerProcess | None = None,
        inherit: Sequence[int] = (),
        patience: Patience = _PATIENCE,
    ) -> None:
        """``on_lost`` is told of each death; ``on_hopeless`` of a reason for which no worker will ever start.

        ``inherit`` are descriptors that stay open for as long as a worker lives; ``first`` is a worker
        that was spawned already.
        """
        self._config = config
        self._on_lost = on_lost
        self._on_hopeless = on_hopeless
        self._command = command
        self._inherit = inherit
        self._first = first
        self._patience = patience
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._channel: AsyncChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_over = False  # nobody keeps a worker any more
        self._has_answered = False  # the present worker
        self.generation = 0
        self.details: dict[str, Any] = {}  # Any: plain JSON; what the worker said when it was ready

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._channel is not None

    @property
    def environment(self) -> Mapping[str, Any]:
        environment: Mapping[str, Any] = self.details.get("environment", {})
        return environment

    async def ready(self) -> None:
        while not self.is_ready:
            if self._is_over:
                raise WorkerLost("the worker is not running, and will not be started again")
            await self._ready.wait()

    async def call(
        self,
        word: str,
        values: dict[str, Any],
        body: bytes = b"",
        *,
        on_release: Callable[[], None] = lambda: None,
        generation: int | None = None,
    ) -> Message:
        """Have the worker do something. Waits until it is ready; see ``engine.backend`` for the words."""
        await self.ready()
        channel = self._channel
        assert channel is not None, "a worker that is ready has a channel"
        if generation not in (None, self.generation):
            raise WorkerLost(
                "the worker that this was meant for is gone, and the next one knows nothing of it", code="unsent"
            )
        number = next(self._numbers)
        pending = _Pending(asyncio.get_running_loop().create_future(), on_release)
        self._pending[number] = pending
        try:
            await channel.send(Message({"id": number, "word": word, "values": values}, body))
            return await pending.reply
        except ChannelClosed as error:
            raise WorkerLost("the worker died before it took the request; try again") from error
        finally:
            self._pending.pop(number, None)

    async def stop(self) -> None:
        """Let it finish what is under way, then end it."""
        self._is_stopping = True
        if self._process is not None and not self._ready.is_set():
            self._process.kill()  # it still loads, and has nothing to finish
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._channel.send(Message({"word": "stop"}))
        if self._process is not None:
            await asyncio.to_thread(self._end, self._process)
        if self._keeper is not None:
            await asyncio.wait({self._keeper}, timeout=_LAST_WORDS_SECONDS)  # its last replies are still to be read
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def kill(self) -> None:
        """End it at once."""
        self._is_stopping = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

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
            self._has_answered = False
            reason = await self._run_once()
            self._ready.clear()
            self._lose_calls(reason)
            if self._is_stopping:
                return
            log.error("worker died reason=%s", reason)
            self._on_lost(reason)
            attempts += 1
            if not self.generation and attempts == _FIRST_ATTEMPTS:
                self._is_stopping = True
                self._on_hopeless(f"{reason}, {attempts} times before it was ready; its output above may say why")
                return
            delay = _FIRST_DELAY_SECONDS if self._has_answered else delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _lose_calls(self, reason: str) -> None:
        self._channel = None
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(WorkerLost(reason))

    async def _run_once(self) -> str:
        """One life of the process; returns how it ended."""
        try:
            spawned = self._first or spawn_worker(self._config, inherit=self._inherit, command=self._command)
        except OSError as error:  # too many files are open, for now
            return f"the worker process could not be started: {error}"
        self._first = None
        process = self._process = spawned.process
        channel = self._channel = await AsyncChannel.over(spawned.channel)
        if self._is_stopping:
            channel.close()  # it came too late to be told to stop
        watch = Watch(self._patience)
        watching = asyncio.create_task(self._keep_watch(process, watch))
        try:
            while True:
                message = await channel.receive()
                watch.hear(message.values)
                self._take(message)
        except ChannelClosed:
            pass
        finally:
            watching.cancel()
            channel.close()
        code = await asyncio.to_thread(process.wait)
        if watch.verdict is not None:
            return f"the worker process hung: {watch.verdict}"
        return f"the worker process ended with {_describe_exit(code)}"

    async def _keep_watch(self, process: subprocess.Popen[bytes], watch: Watch) -> None:
        """From the moment the worker is ready, for what it takes to load models is anybody's guess."""
        await self._ready.wait()
        is_alive = True
        while is_alive:
            await asyncio.sleep(self._patience.check_seconds)
            is_alive = watch.check()
        process.kill()

    def _take(self, message: Message) -> None:
        values = message.values
        if values["event"] == "ready":
            self.details = dict(values["details"])
            self.generation += 1
            self._ready.set()
            return
        if values["event"] == BEAT:
            return
        if values["event"] == "hopeless":
            self._is_stopping = True
            self._on_hopeless(values["error"])
            return
        self._has_answered = True
        pending = self._pending.get(values["id"])
        if pending is None or pending.reply.done():
            return  # whoever asked has stopped waiting
        match values["event"]:
            case "released":
                pending.on_release()
            case "done":
                pending.reply.set_result(Message(values["values"], message.body))
            case "failed":
                pending.reply.set_exception(_error(values))


def _error(values: Mapping[str, Any]) -> RequestError:
    kind = BadRequest if values["category"] == "user" else ServerFailure
    return kind(values["error"], code=values.get("code"))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    meaning = _SIGNALS.get(-code)
    return f"signal {-code} ({meaning})" if meaning else f"signal {-code}"
