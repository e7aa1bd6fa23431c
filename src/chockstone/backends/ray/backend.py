"""The Ray backend: a group of workers on a Ray cluster, started and started again from here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from chockstone.backends.channel import AsyncChannel, ChannelClosed, Message
from chockstone.backends.ray.plan import COMMAND, RayPlan, spawn_driver
from chockstone.backends.ray.rank_listener import RankListener
from chockstone.backends.supervision.heartbeat import HeartbeatLimits
from chockstone.backends.supervision.process import WorkerConfig, WorkerProcess
from chockstone.backends.supervision.supervisor import NotStarted, WorkerSupervisor, describe_exit

log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS: Final = 5.0  # for Ray to say who died, when a connection is gone
T = TypeVar("T")


class RayBackend(WorkerSupervisor):
    """Calls to rank 0 of a group. When any of its processes is lost, all of it is, and another is made.

    With each group comes a driver, a process that joins the cluster, or starts one, and leaves it again.
    """

    def __init__(
        self,
        plan: RayPlan,
        config: WorkerConfig,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        on_hopeless: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
        first: WorkerProcess | None = None,
        inherit: Sequence[int] = (),
        patience: HeartbeatLimits | None = None,
    ) -> None:
        """``inherit`` are descriptors that a driver holds for as long as its group lives; ``first`` is a driver
        that was spawned already."""
        super().__init__(on_lost=on_lost, on_hopeless=on_hopeless, patience=patience)
        self._plan = plan
        self._config = config
        self._command = command
        self._first = first
        self._inherit = inherit

    def _begin(self) -> _Group:
        spawned = self._first or spawn_driver(self._plan, self._config, inherit=self._inherit, command=self._command)
        self._first = None
        return _Group(spawned)


class _Group:
    """One life of it, as its driver tells."""

    def __init__(self, spawned: WorkerProcess) -> None:
        self._spawned = spawned
        self._driver: AsyncChannel | None = None
        self._leader: AsyncChannel | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._placed: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # this machine's address
        self._reason: str | None = None  # why it ended
        self._is_refused = False  # for a reason that will not pass by itself
        self._is_over = False  # as it should
        self._is_killed = False

    async def connect(self) -> AsyncChannel:
        self._driver = await AsyncChannel.over(self._spawned.channel)
        self._hearing = asyncio.create_task(self._hear(self._driver))
        host = await self._unless_it_ends(self._placed)
        door = RankListener()
        try:
            await door.open(host)
            start = {"word": "start", "host": host, "port": door.port, "token": door.token}
            await self._driver.send(Message(start))
            self._leader = await self._unless_it_ends(door.entered)
        except OSError as error:
            self._reason = f"workers cannot reach this server on {host}: {error.strerror}"
            self.kill()
            raise NotStarted(self._reason) from error
        finally:
            door.close()
        return self._leader

    def kill(self) -> None:
        self._is_killed = True
        if self._leader is not None:
            self._leader.abort()
        if self._driver is None:
            self._spawned.process.kill()  # it has hardly begun
        else:
            self._driver.close()  # which ends all of it

    async def ended(self) -> str:
        if self._hearing is not None:
            await asyncio.wait({self._hearing}, timeout=0 if self._is_killed else _LAST_WORDS_SECONDS)
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        if self._driver is not None:
            self._driver.close()
        code = await asyncio.to_thread(self._spawned.wait)
        if self._reason is None and code:
            return f"the process that speaks to Ray ended with {describe_exit(code)}"
        return self._reason or "the connection to the first worker was lost"

    async def _unless_it_ends(self, awaited: asyncio.Future[T]) -> T:
        assert self._hearing is not None, "a driver that is waited for is heard"
        either: set[asyncio.Future[Any]] = {awaited, self._hearing}  # Any: whatever they bring
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            return awaited.result()
        awaited.cancel()
        if self._is_refused and self._reason is not None:
            raise NotStarted(self._reason)
        raise ChannelClosed("the driver has ended")

    async def _hear(self, driver: AsyncChannel) -> None:
        """Until it ends, or says that the group has."""
        with contextlib.suppress(ChannelClosed):
            while self._reason is None:
                self._take((await driver.receive()).values)
        if self._leader is not None and not self._is_over:
            self._leader.abort()

    def _take(self, values: Mapping[str, Any]) -> None:
        match values["event"]:
            case "placed":
                self._placed.set_result(values["host"])
                log.info("workers placed workers=%d nodes=%s", values["workers"], ",".join(values["nodes"]))
            case "ended":
                self._is_over = True
            case "lost":
                self._reason = values["reason"]
            case "refused":
                self._reason, self._is_refused = values["reason"], True
