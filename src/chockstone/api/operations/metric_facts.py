"""Metric facts: what the engine, the worker, the catalog and the disks know anyway, read when Prometheus asks.

A source that does not answer in time leaves its metrics out, and ``chockstone_scrape_errors`` counts it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from chockstone.api.context import Context
from chockstone.api.operations.replicas import has_replicas
from chockstone.api.status.queue_load import queue_load
from chockstone.api.status.run_states import count_by_state
from chockstone.backends.protocol import SamplerStatus
from chockstone.catalog import CatalogError
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.engine import Engine
from chockstone.engine.runs.recovery.membership import ReplicaMember
from chockstone.telemetry import declarations as declared
from chockstone.telemetry.declarations import MetricDeclaration

log = logging.getLogger(__name__)
_SOURCE_SECONDS: Final = 3.0  # for the catalog or a disk to answer; Prometheus waits 10 seconds


class FactReader:
    def __init__(self, context: Context, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._monotonic = monotonic

    async def read(self) -> tuple[Metric, ...]:
        engine = self._context.engine
        slow = await asyncio.gather(*(_in_time(source) for source in self._slow_sources()))
        failed = sum(each is None for each in slow)
        found = [*_queues(engine, self._monotonic()), *_journal(engine), *_worker(engine)]
        found += [family for families in slow if families is not None for family in families]
        found.append(_one(declared.DISK_RESERVE, engine.rules.reserve_bytes))
        found.append(_one(declared.SCRAPE_ERRORS, failed))
        return tuple(found)

    def _slow_sources(self) -> Iterator[Awaitable[list[Metric]]]:
        yield self._disks()
        yield self._runs()
        yield self._checkpoints()
        yield self._readiness()

    async def _disks(self) -> list[Metric]:
        context = self._context
        data = await asyncio.to_thread(shutil.disk_usage, context.config.data)
        free = [(("data",), float(data.free))]
        store = await context.engine.storage.free_bytes()
        if store is not None:
            free.append((("store",), float(store)))
        return [declared.DISK_FREE.family(*free)]

    async def _runs(self) -> list[Metric]:
        counts = await count_by_state(self._context.engine, None)
        return [declared.RUNS.family(*(((state,), float(counts.get(state, 0))) for state in declared.RUN_STATES))]

    async def _readiness(self) -> list[Metric]:
        return [_one(declared.READY, not await self._context.status.readiness.reasons())]

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


def _queues(engine: Engine, now: float) -> Iterator[Metric]:
    runs, load = list(engine.runs), queue_load(engine, None, now=now)
    yield _one(declared.QUEUED_OPERATIONS, load.operations)
    yield _one(declared.QUEUED_SAMPLES, load.samples)
    yield _one(declared.QUEUED_BYTES, engine.queued_bytes)
    yield _one(declared.OLDEST_WAIT, load.oldest_wait_seconds or 0.0)
    yield _one(declared.GAPS_EXCEEDING, len(engine.gaps.exceeding))
    yield _one(declared.REPLAY_SECONDS, max((run.backlog.seconds for run in runs), default=0.0))
    yield _one(declared.JOURNAL_BYTES, sum(run.journal.size_bytes for run in runs))


def _journal(engine: Engine) -> Iterator[Metric]:
    writer = engine.journal_writer
    yield _one(declared.JOURNAL_FAILING, engine.journal_trouble is not None)
    yield _one(declared.JOURNAL_LAG, 0.0 if writer is None else writer.lag_seconds)
    yield _one(declared.JOURNAL_WAITING, 0 if writer is None else writer.waiting_records)


def _worker(engine: Engine) -> Iterator[Metric]:
    status = engine.worker_status
    yield _one(declared.WORKER_READY, engine.is_ready)
    if status.memory.resident_bytes is not None:
        yield _one(declared.WORKER_MEMORY, status.memory.resident_bytes)
    gpus = [(str(number), gpu) for number, gpu in enumerate(status.memory.gpus)]
    if gpus:
        yield declared.GPU_USED.family(*(((number,), float(gpu.used_bytes)) for number, gpu in gpus))
        yield declared.GPU_TOTAL.family(*(((number,), float(gpu.total_bytes)) for number, gpu in gpus))
    if status.sampler is not None:
        yield from _sampler(status.sampler)
    if has_replicas(engine.membership):
        yield from _replicas(engine.membership.members())


def _replicas(members: Sequence[ReplicaMember]) -> Iterator[Metric]:
    labelled = [((str(each.number),), each) for each in members]
    known = [(label, each.worker.status.memory.resident_bytes) for label, each in labelled]
    yield declared.REPLICA_READY.family(*((label, float(each.worker.is_ready)) for label, each in labelled))
    yield declared.REPLICA_RUNS.family(*((label, float(each.runs)) for label, each in labelled))
    yield declared.REPLICA_MEMORY.family(*((label, float(size)) for label, size in known if size is not None))


def _sampler(status: SamplerStatus) -> Iterator[Metric]:
    yield _one(declared.SAMPLER_REQUESTS, status.requests)
    yield _one(declared.SAMPLER_SEQUENCES, status.sequences)
    yield _one(declared.SAMPLER_STEPS, status.decode_steps)
    yield _one(declared.SAMPLER_TOKENS, status.decoded_tokens)
    yield _one(declared.SAMPLER_CACHE, status.cache_bytes)
    yield _one(declared.SAMPLER_CACHE_LIMIT, status.cache_limit_bytes)
    yield _one(declared.PREFIX_CACHE, status.prefix_cache_bytes)
    yield _one(declared.PREFIX_CACHE_LIMIT, status.prefix_cache_limit_bytes)
    yield _one(declared.PREFIX_HITS, status.prefix_hit_tokens)
    yield _one(declared.PREFIX_EVICTIONS, status.prefix_evicted_blocks)
    yield _one(declared.SAMPLER_WEIGHTS, status.weights_cache_bytes)
    yield _one(declared.SAMPLER_WEIGHTS_LIMIT, status.weights_cache_limit_bytes)


def _one(declaration: MetricDeclaration, value: float) -> Metric:
    return declaration.family(((), float(value)))
