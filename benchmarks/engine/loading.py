"""Loading: how many operations per second an engine takes whose workers need no time, and its CPU time for each.

All runs train at once, each as a script does: a pass and an optimizer step are sent together, then their results are
awaited. So the figures are those of the engine with its journal and its catalog, without HTTP and without arithmetic.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks.engine.fake_worker import FakeWorker
from benchmarks.engine.scale import FULL, QUICK, Load
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series
from chockstone.backends.run_spec import RunSpec
from chockstone.catalog import Catalog
from chockstone.checkpoints import Checkpointer, open_store
from chockstone.engine.config import Durability, EngineLimits, JournalMode, StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.runs.run import Run
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.archive_storage import ArchiveStorage

FEW, MANY, SYNCED = "16 runs, 1 worker", "1,000 runs, 100 replicas", "1,000 runs, 100 replicas, journal synced"
MODES: dict[str, JournalMode] = {FEW: "on", MANY: "on", SYNCED: "synced"}
LARGE = "1,000 runs, 100 replicas, 16,384 tokens a pass"
OPENS, SAMPLERS, SAMPLES, MOVES = "new runs", "samplers", "samples", "moves to another replica"


@dataclass(frozen=True, slots=True)
class Loaded:
    engine: Engine
    runs: list[Run]


class NotAnswered(Exception):
    """An operation failed, or has no result."""


def measure_steps(context: Context, _: None) -> Rows:
    scale = QUICK if context.quick else FULL
    loads = {FEW: scale.few, MANY: scale.many, SYNCED: scale.many, LARGE: scale.large}
    rows: Rows = {}
    for name, load in loads.items():
        rows[name] = Series()
        for number in range(scale.rounds):
            context.say(f"{name}: round {number + 1} of {scale.rounds}")
            home = context.directory / f"{len(rows)}-{number}"
            steps = scale.large_steps if name == LARGE else scale.steps
            rows[name].add(asyncio.run(_measure(home, load, MODES.get(name, "on"), steps)))
    context.describe(f"a request of {scale.many.body_bytes} bytes and a result of {scale.many.result_bytes} a pass")
    return rows


def measure_rows(context: Context, _: None) -> Rows:
    """What besides steps touches the catalog or the journal: new runs, samplers on the newest weights, samples."""
    scale = QUICK if context.quick else FULL
    context.describe(f"{scale.many.runs:,} runs, {scale.many.replicas} replicas")
    rows = {name: Series() for name in (OPENS, SAMPLERS, SAMPLES, MOVES)}
    for number in range(scale.rounds):
        context.say(f"round {number + 1} of {scale.rounds}")
        found = asyncio.run(_measure_rows(context.directory / f"rows-{number}", scale.many))
        for name, metrics in found.items():
            rows[name].add(metrics)
    return rows


async def _measure(home: Path, load: Load, mode: JournalMode, steps: int) -> Metrics:
    async with _engine(home, load, mode) as engine:
        loaded = Loaded(engine, await _open_runs(engine, load))
        body = bytes(load.body_bytes)
        await asyncio.gather(*(_train(loaded, run, 1, 1, body) for run in loaded.runs))  # warm-up
        before = _journal_bytes(home)
        seconds, cpu = await _timed(
            lambda: asyncio.gather(*(_train(loaded, run, 3, steps, body) for run in loaded.runs))
        )
        operations = 2 * steps * len(loaded.runs)
        return {
            "operations_per_second": operations / seconds,
            "cpu_seconds": cpu / operations,
            "journal_bytes_per_second": (_journal_bytes(home) - before) / seconds,
        }


async def _measure_rows(home: Path, load: Load) -> dict[str, Metrics]:
    async with _engine(home, load, "on") as engine:
        runs: list[Run] = []

        async def open_all() -> None:
            runs.extend(await _open_runs(engine, load))

        found = {OPENS: await _timed(open_all)}
        loaded = Loaded(engine, runs)
        found[SAMPLERS] = await _timed(lambda: asyncio.gather(*(_snapshot(loaded, run) for run in runs)))
        found[MOVES] = await _timed(lambda: asyncio.gather(*(_move(engine, run, load.replicas) for run in runs)))
        found[SAMPLES] = await _timed(lambda: asyncio.gather(*(_sample(engine, number) for number in range(load.runs))))
        return {
            name: {"operations_per_second": load.runs / seconds, "cpu_seconds": cpu / load.runs}
            for name, (seconds, cpu) in found.items()
        }


@asynccontextmanager
async def _engine(home: Path, load: Load, mode: JournalMode) -> AsyncIterator[Engine]:
    home.mkdir(parents=True)
    store = open_store(home / "checkpoints")
    storage = ArchiveStorage(store)
    with Checkpointer(store) as checkpointer:
        workers = [
            FakeWorker(checkpointer, generation=1 + number, result_bytes=load.result_bytes)
            for number in range(load.replicas)
        ]
        async with await Catalog.open(f"sqlite:///{home}/catalog.sqlite3") as catalog:
            await catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=datetime.now(UTC))
            engine = Engine(
                ReplicaSet(workers) if load.replicas > 1 else workers[0],
                catalog,
                storage,
                data=home,
                durability=Durability(mode),
                limits=EngineLimits(runs=2 * load.runs),
                rules=StorageRules(reserve_bytes=0),
            )
            await engine.start()
            try:
                yield engine
            finally:
                await engine.stop()
    storage.close()


async def _open_runs(engine: Engine, load: Load) -> list[Run]:
    async def open_run(number: int) -> Run:
        request_id = await engine.training.open(
            "s",
            number,
            owner="local",
            base_model="tiny",
            spec=RunSpec(rank=8, seed=number),
            optimizer={"type": "adamw"},
            user_metadata={},
            project_id=None,
        )
        await _result(engine, request_id)
        run = engine.runs.get(f"s:train:{number}")
        assert run is not None, "a run that was opened is live"
        return run

    return list(await asyncio.gather(*(open_run(number) for number in range(load.runs))))


async def _train(loaded: Loaded, run: Run, first_seq_id: int, steps: int, body: bytes) -> None:
    training = loaded.engine.training
    for seq_id in range(first_seq_id, first_seq_id + 2 * steps, 2):
        passing = await training.forward_backward(run, seq_id, body)
        stepping = await training.optim_step(run, seq_id + 1, {"learning_rate": 1e-4})
        await _result(loaded.engine, passing)
        await _result(loaded.engine, stepping)


async def _snapshot(loaded: Loaded, run: Run) -> None:
    await _result(loaded.engine, await loaded.engine.training.save_for_sampling(run, 1, run.facts.model_seq_id))


async def _move(engine: Engine, run: Run, replicas: int) -> None:
    if not await engine.moves.move(run, (run.replica + 1) % replicas):
        raise NotAnswered(f"{run.run_id} did not move")
    while not engine.holds(run):
        await asyncio.sleep(0.01)


async def _sample(engine: Engine, number: int) -> None:
    source = SamplerSource(f"s:sample:{10_000_000 + number}", "local", "tiny", None)
    submitted = await engine.sampling.submit(source, 0, b"prompt", num_samples=1)
    await _result(engine, submitted.request_id)


async def _result(engine: Engine, request_id: str) -> None:
    promise = await engine.find_promise(request_id)
    result = None if promise is None else await promise.wait(600)
    if result is None or b'"error"' in result.body[:200]:
        raise NotAnswered(f"{request_id}: {None if result is None else result.body[:300]!r}")
    assert promise is not None, "it has a result"
    engine.futures.delivered(promise)  # as the route does


async def _timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds, and seconds of CPU of this process, the journal's thread included."""
    started, cpu = perf_counter(), time.process_time()
    await work()
    return perf_counter() - started, time.process_time() - cpu


def _journal_bytes(home: Path) -> int:
    return sum(file.stat().st_size for file in (home / RUN_JOURNALS).rglob("*") if file.is_file())


logging.getLogger("chockstone").setLevel(logging.ERROR)
