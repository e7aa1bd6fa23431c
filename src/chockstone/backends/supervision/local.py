"""The local backend: the worker is one child process of the server. A second one may wait as a spare."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from chockstone.backends.channel import AsyncChannel
from chockstone.backends.protocol import WorkerLost
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import COMMAND, WorkerConfig, WorkerProcess, spawn_worker
from chockstone.backends.supervision.spare import SpareWorker
from chockstone.backends.supervision.supervisor import WorkerSupervisor, describe_exit

_LONGEST_SPARE_SECONDS: Final = 3600.0


class LocalBackend(WorkerSupervisor):
    def __init__(
        self,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_fatal: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
        first: WorkerProcess | None = None,
        inherit: Sequence[int] = (),
        spare_seconds: float | None = None,
        heartbeat_limits: HeartbeatLimits | None = None,
        clock: Callable[[], float] = time.time,
        generations: Iterator[int] | None = None,
    ) -> None:
        """``first`` is a worker that was spawned already; ``inherit`` are descriptors that each worker keeps open.

        ``spare_seconds``: how long a worker must be ready before a spare is started beside it; None: no spare.
        ``generations``: see ``WorkerSupervisor``.
        """
        super().__init__(
            on_lost=on_lost,
            on_fatal=on_fatal,
            heartbeat_limits=heartbeat_limits,
            clock=clock,
            generations=generations,
        )
        self._config = config
        self._command = command
        self._inherit = inherit
        self._first = first
        self._spare_seconds = spare_seconds
        self._spare = SpareWorker(lambda: self._spawn(replace(config, is_spare=True)))
        self._keeping: asyncio.Task[None] | None = None

    @property
    def spare_pid(self) -> int | None:
        """Process id of the spare worker; None: there is none at the moment."""
        return self._spare.pid

    async def start(self) -> None:
        await super().start()
        if self._spare_seconds is not None:
            self._keeping = asyncio.create_task(self._keep_spare(self._spare_seconds))

    async def stop(self) -> None:
        self._end_spare()
        await super().stop()

    def kill(self) -> None:
        self._end_spare()
        super().kill()

    def _start_worker(self) -> _ChildProcess:
        spawned = self._first or self._spare.promote() or self._spawn(self._config)
        self._first = None
        return _ChildProcess(spawned)

    def _spawn(self, config: WorkerConfig) -> WorkerProcess:
        return spawn_worker(config, inherit=self._inherit, command=self._command)

    async def _keep_spare(self, spare_seconds: float) -> None:
        """See to it that a spare waits beside each worker that stays ready, until no worker is started any more.

        A spare that died is replaced, too: later each time in a row, since memory may be short.
        """
        seconds = spare_seconds
        with contextlib.suppress(WorkerLost):
            while True:
                await self.ready()
                generation = self.generation
                await asyncio.sleep(seconds)
                if self.is_ready and self.generation == generation:
                    has_died = self._spare.fill()
                    seconds = min(2 * seconds, _LONGEST_SPARE_SECONDS) if has_died else spare_seconds

    def _end_spare(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        self._spare.end()


class _ChildProcess:
    def __init__(self, spawned: WorkerProcess) -> None:
        self._spawned = spawned

    async def connect(self) -> AsyncChannel:
        return await AsyncChannel.over(self._spawned.channel)

    def kill(self) -> None:
        self._spawned.process.kill()

    async def ended(self) -> str:
        code = await asyncio.to_thread(self._spawned.process.wait)
        return f"the worker process ended with {describe_exit(code)}"
