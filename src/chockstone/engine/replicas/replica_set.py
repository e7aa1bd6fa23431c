"""The replica set: several workers with the same models behind the protocol of one.

A run's calls go to the replica that it is placed on. A sample goes to the replica with the fewest samples in progress:
its result depends on the weights and its seed alone. Replicas may join, and leave once they have no runs and samples.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from chockstone.backends.protocol import (
    OnPieces,
    SampleCall,
    SampleReply,
    SamplerStatus,
    Worker,
    WorkerLost,
    WorkerMemory,
    WorkerPhase,
    Workers,
    WorkerStatus,
)
from chockstone.engine.replicas.placement import ReplicaFacts
from chockstone.wire.failures import RequestError

_PHASES: Final[Sequence[WorkerPhase]] = ("ready", "restarting", "starting", "failing", "stopped")  # the best first
_MOST_REPLICAS: Final = 2  # that one sample may kill
_REMEMBERED: Final = 4096  # samples that replicas died of


class ReplicaSet:
    """Generations of the replicas must be distinct.

    A replica is found by its number. One that has left keeps its place, and is not ready, until another one gets its
    number.
    """

    def __init__(self, replicas: Sequence[Worker], *, make: Callable[[int], Worker] | None = None) -> None:
        """``make``: a worker for this number, with the settings of the others; None: no replica joins later."""
        assert replicas, "there is at least one replica"
        self._replicas = list(replicas)
        self._make = make
        self._leaving: set[int] = set()
        self._gone: set[int] = set()  # they have no runs, and their workers end or have ended
        self._free: set[int] = set()  # numbers of those whose workers have ended
        self._under_way: dict[str, int] = {}  # sample → replica
        self._killed: OrderedDict[str, frozenset[int]] = OrderedDict()  # sample → replicas that died while they ran it

    @property
    def replicas(self) -> Sequence[Worker]:
        return self._replicas

    @property
    def members(self) -> list[int]:
        """Numbers of the replicas that have not left, those that are leaving included."""
        return [number for number in range(len(self._replicas)) if number not in self._gone]

    @property
    def can_grow(self) -> bool:
        return self._make is not None

    def is_leaving(self, replica: int) -> bool:
        return replica in self._leaving

    def has_samples(self, replica: int) -> bool:
        return replica in self._under_way.values()

    async def add(self) -> int:
        """Begin to start one more worker, with the lowest number that is free. Returns the number."""
        assert self._make is not None, "it can grow"
        number = min(self._free, default=len(self._replicas))
        worker = self._make(number)
        self._replicas[number : number + 1] = [worker]
        self._gone.discard(number)
        self._free.discard(number)
        await worker.start()
        return number

    def begin_leaving(self, replica: int) -> None:
        """From now on it takes runs and samples only if no other replica is ready."""
        self._leaving.add(replica)

    def cancel_leaving(self, replica: int) -> None:
        self._leaving.discard(replica)

    async def remove(self, replica: int) -> None:
        """End the worker of a replica that has no runs and no samples. It takes none from this call on."""
        self._gone.add(replica)
        self._leaving.discard(replica)
        await self._replicas[replica].stop()
        self._free.add(replica)

    def facts(self) -> list[ReplicaFacts]:
        return [ReplicaFacts(each, self._replicas[each].is_ready, each in self._leaving) for each in self.members]

    @property
    def is_ready(self) -> bool:
        return any(self._replicas[each].is_ready for each in self.members)

    @property
    def generation(self) -> int:
        return max(each.generation for each in self.replicas)

    @property
    def trouble(self) -> str | None:
        """Of the first replica that has any: the others may be ready."""
        troubles = (self._replicas[each].trouble for each in self.members)
        return next((trouble for trouble in troubles if trouble is not None), None)

    @property
    def environment(self) -> Mapping[str, Any]:  # Any: plain JSON
        """Of the newest worker that became ready; all replicas have the same settings."""
        return max(self.replicas, key=lambda each: each.generation).environment

    @property
    def status(self) -> WorkerStatus:
        """Of all replicas together: ready if one is."""
        found = [each.status for each in self.replicas]
        best = min(found, key=lambda status: (_PHASES.index(status.phase), status.since))
        dead = max(found, key=lambda status: status.last_death_at or 0.0)
        return WorkerStatus(
            phase=best.phase,
            since=best.since,
            deaths=sum(status.deaths for status in found),
            last_death=dead.last_death,
            last_death_at=dead.last_death_at,
            memory=_together([status.memory for status in found]),
            sampler=_sum_samplers([status.sampler for status in found if status.sampler is not None]),
        )

    async def ready(self) -> None:
        """Wait until a replica is ready. Raises WorkerLost if none will be started any more."""
        if self.is_ready:
            return
        waiting = {asyncio.create_task(each.ready()) for each in self.replicas}
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() is None for task in done):
                    return
            raise WorkerLost("no replica of the worker is running, and none will be started again")
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def start(self) -> None:
        for each in self.replicas:
            await each.start()

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.replicas))

    async def sample(self, call: SampleCall, *, on_pieces: OnPieces = lambda _: None) -> SampleReply:
        """A snapshot that another replica writes at the moment is waited for.

        One that did not fit on the disk is in the memory of the replica that made it: if the chosen replica does not
        find the weights, the others are asked.
        """
        await self.ready()
        chosen = self._choose(call.key)
        await self._wait_until_written(call.archive, but=chosen)
        if chosen in self._gone:  # it left meanwhile
            chosen = self._choose(call.key)
        try:
            return await self._sample_in(chosen, call, on_pieces)
        except RequestError as error:
            if error.code != "missing":
                raise
            missing = error
        for number, each in enumerate(self.replicas):
            if number != chosen and each.is_ready and number not in self._gone:
                with _suppress_missing():
                    return await self._sample_in(number, call, on_pieces)
        raise missing

    async def _sample_in(self, replica: int, call: SampleCall, on_pieces: OnPieces) -> SampleReply:
        self._under_way[call.key] = replica
        try:
            reply = await self.replicas[replica].sample(call, on_pieces=on_pieces)
        except WorkerLost as error:
            if error.code != "unsent":
                self._note_killed(call.key, replica)
            raise
        finally:
            self._under_way.pop(call.key, None)
        self._killed.pop(call.key, None)
        return reply

    async def cancel(self, key: str) -> None:
        if (replica := self._under_way.get(key)) is not None:
            await self.replicas[replica].cancel(key)

    async def forget(self, archive: str) -> None:
        """Each replica drops the weights and deletes the archive after its own write. Raises RequestError, after all
        were asked, if one that is ready did not."""
        asked = [each for each in self.replicas if each.is_ready]
        if not asked:
            raise WorkerLost("no replica of the worker is ready", code="unsent")
        answers = await asyncio.gather(*(each.forget(archive) for each in asked), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def written(self, archive: str) -> None:
        await self._wait_until_written(archive, but=None)

    async def _wait_until_written(self, archive: str | None, *, but: int | None) -> None:
        if archive is None:
            return
        others = [each for number, each in enumerate(self.replicas) if number != but and each.is_ready]
        for answer in await asyncio.gather(*(each.written(archive) for each in others), return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, RequestError):
                raise answer  # a replica that died has nothing to write

    def _choose(self, key: str) -> int:
        """The ready replica with the fewest samples; of a sample that killed two replicas, one of these."""
        members = self.members
        killed = self._killed.get(key, frozenset()).intersection(members)
        loads = [0] * len(self._replicas)
        for replica in self._under_way.values():
            loads[replica] += 1
        allowed = killed if len(killed) >= _MOST_REPLICAS else members
        ready = [number for number in allowed if self._replicas[number].is_ready]
        staying = [number for number in ready if number not in self._leaving]
        return min(staying or ready or allowed, key=lambda number: (loads[number], number))

    def _note_killed(self, key: str, replica: int) -> None:
        self._killed[key] = self._killed.get(key, frozenset()) | {replica}
        self._killed.move_to_end(key)
        if len(self._killed) > _REMEMBERED:
            self._killed.popitem(last=False)


def replica_facts(workers: Workers) -> list[ReplicaFacts]:
    """What placement needs to know of each replica."""
    if isinstance(workers, ReplicaSet):
        return workers.facts()
    return [ReplicaFacts(number, each.is_ready) for number, each in enumerate(workers.replicas)]


@contextmanager
def _suppress_missing() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        if error.code != "missing":
            raise


def _together(memories: Sequence[WorkerMemory]) -> WorkerMemory:
    known = [memory.resident_bytes for memory in memories if memory.resident_bytes is not None]
    gpus = tuple(gpu for memory in memories for gpu in memory.gpus)
    return WorkerMemory(sum(known) if known else None, gpus)


def _sum_samplers(found: Sequence[SamplerStatus]) -> SamplerStatus | None:
    if not found:
        return None
    return SamplerStatus(
        requests=sum(each.requests for each in found),
        sequences=sum(each.sequences for each in found),
        cache_bytes=sum(each.cache_bytes for each in found),
        cache_limit_bytes=sum(each.cache_limit_bytes for each in found),
        decode_steps=sum(each.decode_steps for each in found),
        decoded_tokens=sum(each.decoded_tokens for each in found),
        prefix_cache_bytes=sum(each.prefix_cache_bytes for each in found),
        prefix_cache_limit_bytes=sum(each.prefix_cache_limit_bytes for each in found),
        prefix_hit_tokens=sum(each.prefix_hit_tokens for each in found),
        prefix_evicted_blocks=sum(each.prefix_evicted_blocks for each in found),
        weights_cache_bytes=sum(each.weights_cache_bytes for each in found),
        weights_cache_limit_bytes=sum(each.weights_cache_limit_bytes for each in found),
    )
