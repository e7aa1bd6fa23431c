"""Metric facts: what the engine, the worker, the catalog and the disks know anyway, read when Prometheus asks.

They are read at most once a second, however often someone asks. A source that does not answer in time leaves its
metrics out, and ``chockstone_scrape_errors`` counts it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from prometheus_client.core import Metric

from chockstone.api.context import Context
from chockstone.catalog import CatalogError
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.engine import Engine
from chockstone.telemetry import declarations as declared
from chockstone.telemetry.declarations import MetricDeclaration

log = logging.getLogger(__name__)
_FRESH_SECONDS: Final = 1.0
_SOURCE_SECONDS: Final = 3.0  # for the catalog or a disk to answer; Prometheus waits 10 seconds


class FactReader:
    def __init__(self, context: Context, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._monotonic = monotonic
        self._reading = asyncio.Lock()
        self._facts: tuple[Metric, ...] = ()
        self._fresh_until = float("-inf")

    async def read(self) -> tuple[Metric, ...]:
        async with self._reading:
            if self._monotonic() >= self._fresh_until:
                self._facts = await self._read()
                self._fresh_until = self._monotonic() + _FRESH_SECONDS
            return self._facts

    async def _read(self) -> tuple[Metric, ...]:
        engine = self._context.engine
        slow = await asyncio.gather(*(_in_time(source) for source in self._slow_sources()))
        failed = sum(each is None for each in slow)
        found = [*_queues(engine), *_journal(engine), *_worker(engine)]
        found += [family for families in slow if families is not None for family in families]
        found.append(_one(declared.DISK_RESERVE, engine.rules.reserve_bytes))
        found.append(_one(declared.SCRAPE_ERRORS, failed))
        return tuple(found)

    def _slow_sources(self) -> Iterator[Awaitable[list[Metric]]]:
        yield self._disks()
        yield self._checkpoints()

    async def _disks(self) -> list[Metric]:
        context = self._context
        data = await asyncio.to_thread(shutil.disk_usage, context.config.data)
        free = [(("data",), float(data.free))]
        store = await context.engine.storage.free_bytes()
        if store is not None:
            free.append((("store",), float(store)))
        return [declared.DISK_FREE.family(*free)]

    async def _checkpoints(self) -> list[Metric]:
        context = self._context
        usage = await context.catalog.checkpoints.usage_by_state(context.now())
        states = ("ready", "damaged")
        counts = [((state,), float(usage[state].count if state in usage else 0)) for state in states]
        sizes = [((state,), float(usage[state].size_bytes if state in usage else 0)) for state in states]
        return [declared.CHECKPOINTS.family(*counts), declared.CHECKPOINT_BYTES.family(*sizes)]


async def _in_time(source: Awaitable[list[Metric]]) -> list[Metric] | None:
    try:
        async with asyncio.timeout(_SOURCE_SECONDS):
            return await source
    except (CatalogError, StoreError, OSError) as error:  # OSError: also TimeoutError
        log.debug("metrics left out error=%s", error)
        return None


def _queues(engine: Engine) -> Iterator[Metric]:
    runs = list(engine.runs)
    yield _one(declared.QUEUED_OPERATIONS, sum(run.lane.waiting for run in runs))
    yield _one(declared.QUEUED_SAMPLES, engine.sampling.waiting)
    yield _one(declared.QUEUED_BYTES, engine.queued_bytes)
    yield _one(declared.REPLAY_SECONDS, max((run.backlog.seconds for run in runs), default=0.0))
    yield _one(declared.JOURNAL_BYTES, sum(run.journal.size_bytes for run in runs))


def _journal(engine: Engine) -> Iterator[Metric]:
    writer = engine.journal_writer
    yield _one(declared.JOURNAL_FAILING, writer is not None and writer.trouble is not None)
    yield _one(declared.JOURNAL_LAG, 0.0 if writer is None else writer.lag_seconds)
    yield _one(declared.JOURNAL_WAITING, 0 if writer is None else writer.waiting_records)


def _worker(engine: Engine) -> Iterator[Metric]:
    yield _one(declared.WORKER_READY, engine.is_ready)


def _one(declaration: MetricDeclaration, value: float) -> Metric:
    return declaration.family(((), float(value)))
