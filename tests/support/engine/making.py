"""Runs and requests to test with: everything about them is ordinary unless a test says otherwise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from chockstone.backends.run_spec import RunSpec
from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Archive, Store
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.config import Durability, EngineLimits, StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Result
from chockstone.engine.history.history_file import HistoryFile
from chockstone.engine.history.run_history import RunHistory
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.runs.commands import Save
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.paths import Kind, TinkerPath
from support.engine.fake_backend import FakeBackend

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
RUN = "s:train:0"
Start = Callable[..., Awaitable[Engine]]  # of an engine with ``started``'s facts


async def make_run(engine: Engine, model_seq_id: int = 0, *, session_id: str = "s", **facts: Any) -> str:
    ordinary = {
        "owner": "local",
        "base_model": "tiny",
        "spec": RunSpec(rank=8, seed=1),
        "optimizer": {"type": "adamw"},
        "user_metadata": {},
        "project_id": None,
    }
    return await engine.training.open(session_id, model_seq_id, **{**ordinary, **facts})


def no_history() -> StepHistory:
    """Of runs whose points are not written."""
    return StepHistory(Path(os.devnull))


def blank_history(run_id: str = RUN) -> RunHistory:
    """Of a run that has no points."""
    return RunHistory(run_id, HistoryFile(Path(os.devnull, "history"), run_id), birth="")


def live_run(engine: Engine, model_seq_id: int = 0) -> Run:
    live = engine.runs.get(f"s:train:{model_seq_id}")
    assert live is not None
    return live


async def made_run(engine: Engine, model_seq_id: int = 0, **facts: Any) -> Run:
    await answer(engine, await make_run(engine, model_seq_id, **facts))
    return live_run(engine, model_seq_id)


async def save(
    engine: Engine, live: Run, seq_id: int | None, name: str = "a", *, kind: Kind = Kind.WEIGHTS, **facts: Any
) -> str:
    return await engine.training.save(live, seq_id, Save(TinkerPath.of(live.run_id, kind, name), **facts))


async def saved(engine: Engine, live: Run, seq_id: int | None, name: str = "a", **facts: Any) -> CheckpointRow:
    told = await answer(engine, await save(engine, live, seq_id, name, **facts))
    assert "error" not in told, told
    return await engine.catalog.checkpoints.get(live.run_id, facts.get("kind", Kind.WEIGHTS).value, name, now=NOW)


async def result_of(engine: Engine, request_id: str) -> Result:
    promise = await engine.find_promise(request_id)
    assert promise is not None
    result = await promise.wait(100)
    assert result is not None, "no result in time"
    return result


async def answer(engine: Engine, request_id: str) -> dict[str, Any]:
    """What a client is told, where that is JSON."""
    answered: dict[str, Any] = orjson.loads((await result_of(engine, request_id)).body)
    return answered


def is_done(engine: Engine, request_id: str) -> bool:
    promise = engine.futures.get(request_id)
    return promise is not None and promise.is_done()


def lose_worker(engine: Engine, backend: FakeBackend) -> None:
    """It dies, and the next one is ready at once."""
    backend.die("signal 9")
    engine.worker_lost("signal 9")


async def settle_down() -> None:
    """Let everything run that does not wait for time, a disk or a test."""
    for _ in range(20):
        await asyncio.sleep(0)


def data_of(storage: ArchiveStorage) -> Path:
    """The data directory that the store is in."""
    assert isinstance(storage.store, FileStore)
    return storage.store.root.parent


class Clock:
    """A time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@asynccontextmanager
async def started(
    backend: FakeBackend,
    catalog: Catalog,
    storage: ArchiveStorage,
    *,
    clock: Callable[[], datetime] | None = None,
    limits: EngineLimits | None = None,
    durability: Durability | None = None,
    trusts_ages: Callable[[], bool] = lambda: True,
    monotonic: Callable[[], float] | None = None,
    on_session_end: Callable[[str], None] = lambda _: None,
    **rules: Any,
) -> AsyncIterator[Engine]:
    """An engine with storage rules of its own, whose background work happens only when a test asks for it."""
    quiet = {"reserve_bytes": 0, "sweep_seconds": 1e6, "scrub_bytes_per_second": 0}
    engine = Engine(
        backend,
        catalog,
        storage,
        data=data_of(storage),
        durability=durability,
        limits=limits,
        rules=StorageRules(**{**quiet, **rules}),
        now=clock or Clock(),
        monotonic=monotonic,
        trusts_ages=trusts_ages,
        on_session_end=on_session_end,
    )
    await engine.start()
    await settle_down()
    try:
        yield engine
    finally:
        backend.let_everything_go()
        await engine.stop()


async def names(engine: Engine, run_id: str = RUN, kind: str = "weights", *, now: datetime = NOW) -> set[str]:
    """Of the run's checkpoints, as lists show them."""
    rows = await engine.catalog.checkpoints.list_by_run(run_id, now=now)
    return {row.name for row in rows if row.kind == kind}


def archives_of(engine: Engine) -> set[str]:
    """But for those that are the server's own."""
    return {entry.name for entry in engine.storage.store.entries() if "/recovery/" not in entry.name}


def flip_a_byte(engine: Engine, row: CheckpointRow) -> None:
    """In the archive's body, where only its digests tell."""
    damage(engine.storage.store, row.archive)


def damage(store: Store, archive: str) -> None:
    """The same, of any archive."""
    assert isinstance(store, FileStore)
    with Archive(store.open(archive)) as opened:
        offset = opened.layout.members[-1].offset
    with store.path(archive).open("r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
