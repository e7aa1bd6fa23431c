"""Replica membership: replicas join a running server, and leave it once their runs and samples have gone elsewhere.

A replica that leaves is drained: its runs move to other replicas, each between two of its operations, and new runs and
samples go elsewhere. Then its worker ends. A replica that dies while it is drained loses nothing: its runs are
recovered in others from their recovery archives and journals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from chockstone.backends.protocol import Worker, Workers
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.runs.recovery.run_moves import RunMoves
from chockstone.engine.runs.run import LiveRuns
from chockstone.wire.failures import BadRequest

log = logging.getLogger(__name__)
_MOST_MEMBERS: Final = 64  # as many as a server may be started with
_FIRST_LOOK_SECONDS: Final = 0.05
_LONGEST_LOOK_SECONDS: Final = 5.0  # between two attempts to move what could not move


@dataclass(frozen=True, slots=True)
class ReplicaMember:
    number: int
    worker: Worker
    runs: int  # that it holds or is to recover
    is_leaving: bool = False
    failure: str | None = None  # why it could not be started; it holds nothing then


class ReplicaMembership:
    def __init__(
        self,
        workers: Workers,
        runs: LiveRuns,
        moves: RunMoves,
        *,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._workers = workers
        self._runs = runs
        self._moves = moves
        self._in_background = in_background
        self._draining: set[int] = set()  # a task looks after each
        self._failures: dict[int, str] = {}

    @property
    def is_elastic(self) -> bool:
        """Whether replicas may join and leave."""
        return isinstance(self._workers, ReplicaSet) and self._workers.can_grow

    def members(self) -> list[ReplicaMember]:
        """The replicas that have not left, by number. A worker without replicas is the only one."""
        if not isinstance(self._workers, ReplicaSet):
            workers = enumerate(self._workers.replicas)
            return [ReplicaMember(number, each, self._count(number)) for number, each in workers]
        replicas = self._workers
        return [
            ReplicaMember(
                number,
                replicas.replicas[number],
                self._count(number),
                replicas.is_leaving(number),
                self._failures.get(number),
            )
            for number in replicas.members
        ]

    async def add(self) -> int:
        """Begin to start one more replica; its number. Raises BadRequest."""
        replicas = self._elastic()
        if len(replicas.members) >= _MOST_MEMBERS:
            raise BadRequest(
                f"no replica is added: there are {_MOST_MEMBERS} already, which is the maximum; "
                "drain one that is not needed"
            )
        number = await replicas.add()
        log.info("replica added replica=%d", number)
        return number

    def drain(self, number: int) -> None:
        """Begin to move the runs of a replica to others; its worker ends when it holds nothing. Raises BadRequest.

        Does nothing if it is leaving already.
        """
        replicas = self._elastic()
        staying = [each for each in replicas.members if not replicas.is_leaving(each) and each not in self._failures]
        if staying == [number]:
            raise BadRequest(
                f"replica {number} is not drained: no other replica stays, and its runs have nowhere to go; "
                "add one first with `chockstone replicas add`"
            )
        replicas.begin_leaving(number)
        if number not in self._draining:
            self._draining.add(number)
            log.info("replica draining replica=%d runs=%d", number, self._count(number))
            self._in_background(self._drain(replicas, number))

    def undrain(self, number: int) -> None:
        """Let a replica that is leaving stay. What has moved stays where it is. Raises BadRequest."""
        replicas = self._elastic()
        if replicas.is_leaving(number):
            log.info("replica stays replica=%d", number)
            replicas.cancel_leaving(number)

    def note_failed(self, number: int, reason: str) -> None:
        """A replica that was added could not be started, and is not started again."""
        self._failures[number] = reason
        log.error("replica not started replica=%d reason=%s", number, reason)

    async def _drain(self, replicas: ReplicaSet, number: int) -> None:
        seconds = _FIRST_LOOK_SECONDS
        try:
            while replicas.is_leaving(number):
                if not await self._moves.evacuate(number):
                    seconds = min(2 * seconds, _LONGEST_LOOK_SECONDS)
                elif self._is_empty(replicas, number):
                    break
                await asyncio.sleep(seconds)
        finally:
            self._draining.discard(number)
        if replicas.is_leaving(number):  # nothing was awaited since it was found empty
            self._failures.pop(number, None)
            await replicas.remove(number)
            log.info("replica left replica=%d", number)

    def _is_empty(self, replicas: ReplicaSet, number: int) -> bool:
        """Runs that this server does not continue are let go: the next server recovers them."""
        for run in self._runs:
            if run.replica == number and run.is_placed and run.is_held:
                run.unplace()
        return self._count(number) == 0 and not replicas.has_samples(number)

    def _count(self, number: int) -> int:
        return sum(run.is_placed and run.replica == number for run in self._runs)

    def _elastic(self) -> ReplicaSet:
        if isinstance(self._workers, ReplicaSet) and self._workers.can_grow:
            return self._workers
        raise BadRequest(
            "replicas cannot join or leave this server: it was started with one worker. Start it with --replicas N or "
            "--replicas auto"
        )
