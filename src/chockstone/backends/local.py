"""The local backend: one child process that holds the models, started and restarted from here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

log = logging.getLogger(__name__)
# -P: modules that happen to lie where the server was started are none of its business. Its last argument is a
# socket's number.
_COMMAND: Final = (sys.executable, "-P", "-m", "chockstone.backends.worker")
_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 30.0
_LAST_WORDS_SECONDS: Final = 5.0
_HEALTHY_SECONDS: Final = 60.0  # a worker that lived this long starts without delay
_FIRST_ATTEMPTS: Final = 3  # to start, until one has ever been ready


class WorkerLost(ServerFailure):
    """The process died while it worked on this call, or before it could start."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What the worker process is told when it starts."""

    models: dict[str, str]  # name → directory
    store: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 0  # 0: as many as there are cores
    max_sequences: int = 256
    tokens_per_micro_batch: int = 0  # 0: what suits the device
    log_level: str = "info"


@dataclass(slots=True)
class _Pending:
    reply: asyncio.Future[Message]
    on_release: Callable[[], None]


class LocalBackend:
    """Calls to a child process. A process that dies fails its calls with WorkerLost and is started again."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_hopeless: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        """``on_lost`` is told of each death; ``on_hopeless`` of a reason for which no worker will ever start."""
        self._config = config
        self._on_lost = on_lost
        self._on_hopeless = on_hopeless
        self._command = command
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._channel: AsyncChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._was_ready = False  # some worker, once
        self.details: dict[str, Any] = {}  # Any: plain JSON; what the worker said when it was ready

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self._channel is not None

    async def call(
        self, word: str, values: dict[str, Any], body: bytes = b"", *, on_release: Callable[[], None] = lambda: None
    ) -> Message:
        """Have the worker do something. Waits until it is ready; see ``engine.backend`` for the words."""
        await self._ready.wait()
        channel = self._channel
        if channel is None:
            raise WorkerLost("the worker is not running; try again in a moment")
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
            self._lose_calls("the worker was stopped")
            self._ready.set()  # whoever waits for a worker that will not come is told so

    async def _run_for_ever(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        loop = asyncio.get_running_loop()
        attempts = 0
        while not self._is_stopping:
            started = loop.time()
            reason = await self._run_once()
            self._ready.clear()
            self._lose_calls(reason)
            if self._is_stopping:
                return
            log.error("worker died reason=%s", reason)
            self._on_lost(reason)
            attempts += 1
            if not self._was_ready and attempts == _FIRST_ATTEMPTS:
                self._is_stopping = True
                self._on_hopeless(f"{reason}, {attempts} times before it was ready; its output above may say why")
                return
            delay = _FIRST_DELAY_SECONDS if loop.time() - started > _HEALTHY_SECONDS else delay
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
            ours, theirs = socket.socketpair()
        except OSError as error:  # too many files are open, for now
            return f"the worker process could not be started: {error}"
        try:
            with theirs:
                process = self._process = self._spawn(theirs)
        except OSError as error:
            ours.close()
            return f"the worker process could not be started: {error}"
        channel = self._channel = await AsyncChannel.over(ours)
        if self._is_stopping:
            channel.close()  # it came too late to be told to stop
        try:
            while True:
                self._take(await channel.receive())
        except ChannelClosed:
            pass
        finally:
            channel.close()
        code = await asyncio.to_thread(process.wait)
        return f"the worker process ended with {_describe_exit(code)}"

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  # this very program
            [*self._command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the server's to handle
            env=_environment(self._config),
        )

    def _take(self, message: Message) -> None:
        values = message.values
        if values["event"] == "ready":
            self.details = dict(values["details"])
            self._was_ready = True
            self._ready.set()
            return
        if values["event"] == "hopeless":
            self._is_stopping = True
            self._on_hopeless(values["error"])
            return
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


def _environment(config: WorkerConfig) -> dict[str, str]:
    """Settings travel in the environment, so that the command line shows none of them."""
    return os.environ | {
        "CHOCKSTONE_WORKER": orjson.dumps(asdict(config)).decode(),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
