"""Lives of a server, one after the other, each on what the one before left behind."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chockstone.catalog import Catalog, RowExists
from chockstone.catalog.tables.recoveries import RecoveryRow
from chockstone.checkpoints import open_store
from chockstone.engine.config import Durability
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Result
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import recovery_folder
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.engine.fake_backend import FakeBackend, Numbers
from support.engine.making import NOW, RUN, answer, made_run, result_of, save, settle_down, started, until

EVERY_STEP = Durability(steps=1)
RARELY = Durability(steps=10**6, replay_seconds=1e9)  # no recovery archive by itself


@dataclass
class Life:
    """What a test asks of a server, and sees of it. Requests are numbered by themselves."""

    home: Path
    engine: Engine
    backend: FakeBackend
    catalog: Catalog
    asked: list[str] = field(default_factory=list)  # request ids, in order
    seq_id: int = 1

    async def run(self, run_id: str = RUN) -> Run:
        live = await self.engine.wake(run_id)
        assert live is not None, f"run {run_id!r} is gone"
        return live

    async def make(self, model_seq_id: int = 0) -> Run:
        return await made_run(self.engine, model_seq_id)

    async def ask_pass(self, number: int, run_id: str = RUN) -> str:
        seq_id = self._next()
        return self._asked(
            await self.engine.training.forward_backward(await self.run(run_id), seq_id, str(number).encode())
        )

    async def ask_step(self, run_id: str = RUN) -> str:
        seq_id = self._next()
        return self._asked(await self.engine.training.optim_step(await self.run(run_id), seq_id, {}))

    async def ask_save(self, name: str = "a", **facts: Any) -> str:
        seq_id = self._next()
        return self._asked(await save(self.engine, await self.run(), seq_id, name, **facts))

    async def ask_sampler(self, sampler_seq_id: int) -> str:
        seq_id = self._next()
        return self._asked(await self.engine.training.save_for_sampling(await self.run(), seq_id, sampler_seq_id))

    async def ask_load(self, name: str = "a") -> str:
        row = await self.catalog.checkpoints.get(RUN, "weights", name, now=NOW)
        seq_id = self._next()
        return self._asked(await self.engine.training.load(await self.run(), seq_id, row, with_optimizer=True))

    async def train(self, *numbers: int, run_id: str = RUN) -> None:
        """A pass and a step for each, and their results."""
        for number in numbers:
            await self.result(await self.ask_pass(number, run_id))
            await self.result(await self.ask_step(run_id))

    async def train_slowly(self, *numbers: int) -> None:
        """The same, and a recovery archive wherever one is due."""
        for number in numbers:
            await self.train(number)
            await (await self.run()).lane.drained()

    async def result(self, request_id: str) -> Result:
        return await result_of(self.engine, request_id)

    async def told(self, request_id: str) -> dict[str, Any]:
        return await answer(self.engine, request_id)

    async def state(self, run_id: str = RUN) -> tuple[int, int, int]:
        """Of the run in the worker, once all that it was asked has ended: weight, gradient and steps."""
        live = await self.run(run_id)
        await until(lambda: live.lane.is_idle() and live.generation == self.backend.generation)
        return state_of(self.backend.runs[run_id])

    async def receipts(self, run_id: str = RUN) -> list[RecoveryRow]:
        """Newest first."""
        return list(await self.catalog.recoveries.list(run_id, limit=100))

    def recovery_archives(self, run_id: str = RUN) -> list[str]:
        """Oldest first."""
        folder = recovery_folder(run_id) + "/"
        return sorted(entry.name for entry in self.backend.store.entries() if entry.name.startswith(folder))

    def journal(self, run_id: str = RUN) -> Path:
        return self.home / RUN_JOURNALS / run_id.replace(":", ".")

    async def written(self) -> None:
        """Until all that journals were given is in them."""
        for live in self.engine.runs:
            if (journal := live.journal._journal) is not None:
                await journal._idle.wait()

    def crash(self) -> Path:
        """What the next server finds if this one is killed now.

        The loop stands still meanwhile, so that what comes first stays first: a segment is copied
        before those that came before it, and a database before its log.
        """
        left = self.home.with_name(f"{self.home.name}+")
        found = sorted((path for path in self.home.rglob("*") if path.is_file()), reverse=True)
        found.sort(key=lambda path: ".sqlite3-" in path.name)
        for path in found:
            if not path.name.endswith("-shm"):
                target = left / path.relative_to(self.home)
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copyfile(path, target)
        return left

    def _next(self) -> int:
        self.seq_id += 1
        return self.seq_id - 1

    def _asked(self, request_id: str) -> str:
        self.asked.append(request_id)
        return request_id


@asynccontextmanager
async def lived(
    home: Path,
    *,
    after: Life | None = None,
    environment: dict[str, Any] | None = None,
    database: str | None = None,
    has_worker: bool = True,
    **facts: Any,
) -> AsyncIterator[Life]:
    """A server's, until it is stopped in good order. Numbers go on where those of the life before ended."""
    home.mkdir(exist_ok=True)
    store = open_store(home / "checkpoints")
    storage = ArchiveStorage(store)
    backend = FakeBackend(store)
    backend.environment.update(environment or {})
    backend.is_slow = not has_worker
    async with await Catalog.open(database or f"sqlite:///{home}/catalog.sqlite3") as catalog:
        with suppress(RowExists):
            await catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=NOW)
        async with started(backend, catalog, storage, **{"durability": RARELY, **facts}) as engine:
            backend.on_death = engine.worker_lost
            life = Life(home, engine, backend, catalog)
            if after is not None:
                life.asked, life.seq_id = list(after.asked), after.seq_id
            yield life
    storage.close()


def state_of(run: Numbers) -> tuple[int, int, int]:
    return run.weight, run.gradient, run.steps


async def half_trained(life: Life) -> None:
    """A step is made, and the next one is half accumulated."""
    await life.make()
    await life.train(5)
    await life.result(await life.ask_pass(7))


async def archived(life: Life, name: str = "a") -> int:
    """The weight in a checkpoint."""
    row = await life.catalog.checkpoints.get(RUN, "weights", name, now=NOW)
    return life.backend.archives[row.archive]


async def is_still_active(life: Life, run_id: str = RUN) -> bool:
    """Whether another server may recover the run, as far as the catalog knows."""
    await settle_down()
    return (await life.catalog.runs.get(run_id)).state == "active"
