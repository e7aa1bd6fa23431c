"""The Ray backend: the worker is a group of Ray actors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.backends.ray.plan import COMMAND, RayPlan, spawn_driver
from chockstone.backends.ray.rank_listener import RankListener
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import WorkerConfig, WorkerProcess
from chockstone.backends.supervision.supervisor import NotStarted, WorkerSupervisor, describe_exit

log = logging.getLogger(__name__)
_REASON_SECONDS: Final = 5.0  # for the driver to report who died, after a connection was lost
T = TypeVar("T")


class RayBackend(WorkerSupervisor):
    """Sends calls to rank 0 of a group. When one process of the group is lost, a new group is started.

    Each group has a driver: a child process that joins a Ray cluster, or starts one, and leaves it again.
    """

    def __init__(
        self,
        plan: RayPlan,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_fatal: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
        first: WorkerProcess | None = None,
        inherit: Sequence[int] = (),
        heartbeat_limits: HeartbeatLimits | None = None,
        generations: Iterator[int] | None = None,
    ) -> None:
        """``first`` is a driver that was spawned already; ``inherit`` are descriptors that each driver keeps open.

        ``generations``: see ``WorkerSupervisor``.
        """
        super().__init__(on_lost=on_lost, on_fatal=on_fatal, heartbeat_limits=heartbeat_limits, generations=generations)
        self._plan = plan
        self._config = config
        self._command = command
        self._first = first
        self._inherit = inherit

    def _start_worker(self) -> _RayGroupHandle:
        spawned = self._first or spawn_driver(self._plan, self._config, inherit=self._inherit, command=self._command)
        self._first = None
        return _RayGroupHandle(spawned)


class _RayGroupHandle:
    """One group, as its driver reports it."""

    def __init__(self, spawned: WorkerProcess) -> None:
        self._spawned = spawned
        self._driver: AsyncChannel | None = None
        self._leader: AsyncChannel | None = None
        self._listening: asyncio.Task[None] | None = None
        self._placed: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # address of this machine
        self._reason: str | None = None  # why the group ended
        self._is_refused = False  # for a reason that the next group would meet, too
        self._has_stopped = False  # all ranks ended as they should
        self._is_killed = False

    async def connect(self) -> AsyncChannel:
        self._driver = await AsyncChannel.over(self._spawned.channel)
        self._listening = asyncio.create_task(self._listen(self._driver))
        host = await self._unless_it_ends(self._placed)
        listener = RankListener()
        try:
            await listener.open(host)
            start = {"host": host, "port": listener.port, "token": listener.token}
            await self._driver.send(Message(start))
            self._leader = await self._unless_it_ends(listener.connected)
        except OSError as error:
            self._reason = f"workers cannot reach this server on {host}: {error.strerror}"
            self.kill()
            raise NotStarted(self._reason) from error
        finally:
            listener.close()
        return self._leader

    def kill(self) -> None:
        self._is_killed = True
        if self._leader is not None:
            self._leader.abort()
        if self._driver is None:
            self._spawned.process.kill()  # it has started no processes yet
        else:
            self._driver.close()  # the driver then ends the group

    async def ended(self) -> str:
        if self._listening is not None:
            await asyncio.wait({self._listening}, timeout=0 if self._is_killed else _REASON_SECONDS)
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._driver is not None:
            self._driver.close()
        code = await asyncio.to_thread(self._spawned.wait)
        if self._reason is None and code:
            return f"the process that speaks to Ray ended with {describe_exit(code)}"
        return self._reason or "the connection to the first worker was lost"

    async def _unless_it_ends(self, awaited: asyncio.Future[T]) -> T:
        assert self._listening is not None, "the driver is listened to before anything of it is awaited"
        either: set[asyncio.Future[Any]] = {awaited, self._listening}  # Any: their results
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            return awaited.result()
        awaited.cancel()
        if self._is_refused and self._reason is not None:
            raise NotStarted(self._reason)
        raise ChannelClosed("the driver has ended")

    async def _listen(self, driver: AsyncChannel) -> None:
        """Until the driver ends, or reports that the group has ended."""
        with contextlib.suppress(ChannelClosed):
            while self._reason is None:
                self._take((await driver.receive()).values)
        if self._leader is not None and not self._has_stopped:
            self._leader.abort()

    def _take(self, values: Mapping[str, Any]) -> None:
        match values["event"]:
            case "placed":
                self._placed.set_result(values["host"])
                log.info("workers placed workers=%d nodes=%s", values["workers"], ",".join(values["nodes"]))
            case "ended":
                self._has_stopped = True
            case "lost":
                self._reason = values["reason"]
            case "refused":
                self._reason, self._is_refused = values["reason"], True
