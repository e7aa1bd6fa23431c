"""An engine with several backends, to lose, drain and add them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.checkpoints import Store
from chockstone.engine.config import Durability, StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.engine.fake_backend import FakeBackend
from support.engine.making import NOW, answer, live_run, made_run, result_of

RESTART_SECONDS = 0.02
SEQ_IDS = itertools.count(1)  # also of the next server


class Replicas:
    """An engine with several backends. One that dies is ready again after a moment, if it is to be at all."""

    def __init__(self, backends: list[FakeBackend], catalog: Catalog, storage: ArchiveStorage, data: Path) -> None:
        self.backends = backends  # by number
        self.restarts = True
        self.joins_slowly = False  # a replica that joins becomes ready by ``restart``
        self._generations = itertools.count(1, 1000)
        self.engine = Engine(
            ReplicaSet(backends, make=self._make),
            catalog,
            storage,
            data=data,
            durability=Durability(steps=2),
            rules=StorageRules(reserve_bytes=0),
            now=lambda: NOW,
        )
        for number, backend in enumerate(backends):
            self._connect(number, backend)

    def _connect(self, number: int, backend: FakeBackend) -> None:
        backend.generation = next(self._generations)
        backend.on_death = partial(self._lose, number)

    def _make(self, number: int) -> FakeBackend:
        """One that joins."""
        backend = FakeBackend(self.backends[0].store)
        backend.is_slow = self.joins_slowly
        self._connect(number, backend)
        self.backends[number : number + 1] = [backend]
        return backend

    def _lose(self, number: int, reason: str) -> None:
        self.backends[number].is_ready = False
        self.engine.worker_lost(reason, number)
        if self.restarts:
            asyncio.get_running_loop().call_later(RESTART_SECONDS, self.restart, number)

    def restart(self, number: int) -> None:
        self.backends[number].is_ready = True

    async def make(self, count: int) -> None:
        for number in range(count):
            await made_run(self.engine, number)

    def has_woken(self, count: int) -> bool:
        return len(self.engine.runs) == count

    def places(self, count: int) -> list[int]:
        return [live_run(self.engine, number).replica for number in range(count)]

    async def ask_pass(self, number: int, body: int) -> str:
        run = live_run(self.engine, number)
        return await self.engine.training.forward_backward(run, next(SEQ_IDS), str(body).encode())

    async def ask_step(self, number: int) -> str:
        return await self.engine.training.optim_step(live_run(self.engine, number), next(SEQ_IDS), {})

    async def train(self, number: int, *bodies: int) -> float:
        """The weight after a pass and a step for each."""
        weight = 0.0
        for body in bodies:
            await result_of(self.engine, await self.ask_pass(number, body))
            weight = (await answer(self.engine, await self.ask_step(number)))["metrics"]["weight"]
        return weight


@asynccontextmanager
async def replicated(
    count: int, store: Store, catalog: Catalog, storage: ArchiveStorage, data: Path
) -> AsyncIterator[Replicas]:
    replicas = Replicas([FakeBackend(store) for _ in range(count)], catalog, storage, data)
    await replicas.engine.start()
    yield replicas
    for number, backend in enumerate(replicas.backends):
        replicas.restart(number)
        backend.let_everything_go()
    await replicas.engine.stop()
