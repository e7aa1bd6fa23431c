"""The local backend: one child process that holds the models, started and restarted from here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from chockstone.backends.channel import AsyncChannel
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import COMMAND, WorkerConfig, WorkerProcess, spawn_worker
from chockstone.backends.supervision.supervisor import WorkerSupervisor, describe_exit


class LocalBackend(WorkerSupervisor):
    """Calls to a child process."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_hopeless: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
        first: WorkerProcess | None = None,
        inherit: Sequence[int] = (),
        patience: HeartbeatLimits | None = None,
    ) -> None:
        """``inherit`` are descriptors that stay open for as long as a worker lives; ``first`` is a worker
        that was spawned already."""
        super().__init__(on_lost=on_lost, on_hopeless=on_hopeless, patience=patience)
        self._config = config
        self._command = command
        self._inherit = inherit
        self._first = first

    def _begin(self) -> _Child:
        spawned = self._first or spawn_worker(self._config, inherit=self._inherit, command=self._command)
        self._first = None
        return _Child(spawned)


class _Child:
    """One life of the process."""

    def __init__(self, spawned: WorkerProcess) -> None:
        self._spawned = spawned

    async def connect(self) -> AsyncChannel:
        return await AsyncChannel.over(self._spawned.channel)

    def kill(self) -> None:
        self._spawned.process.kill()

    async def ended(self) -> str:
        code = await asyncio.to_thread(self._spawned.process.wait)
        return f"the worker process ended with {describe_exit(code)}"
