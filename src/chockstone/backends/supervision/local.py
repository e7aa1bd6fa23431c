"""The local backend: the worker is one child process of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from chockstone.backends.channel import AsyncChannel
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import COMMAND, WorkerConfig, WorkerProcess, spawn_worker
from chockstone.backends.supervision.supervisor import WorkerSupervisor, describe_exit


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
        heartbeat_limits: HeartbeatLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``first`` is a worker that was spawned already; ``inherit`` are descriptors that each worker keeps open."""
        super().__init__(on_lost=on_lost, on_fatal=on_fatal, heartbeat_limits=heartbeat_limits, clock=clock)
        self._config = config
        self._command = command
        self._inherit = inherit
        self._first = first

    def _start_worker(self) -> _ChildProcess:
        spawned = self._first or spawn_worker(self._config, inherit=self._inherit, command=self._command)
        self._first = None
        return _ChildProcess(spawned)


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
