"""The server: one process that answers, a worker that computes, and a way to stop both.

The API answers as soon as the socket is bound; the worker loads torch and the models behind it, and
requests that need it wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chockstone.api.app import create_app
from chockstone.api.config import ServerConfig
from chockstone.api.context import Context, SamplerSources
from chockstone.api.downloads.signing import Signer
from chockstone.api.model_descriptions import describe_models
from chockstone.api.serving.file_watch import FileWatch
from chockstone.api.serving.listening import event_loop, get_ready, http_server, stop_on_signals
from chockstone.api.serving.preparing import Announce, CannotStart, Prepared, ray_plan, refuse_open_door
from chockstone.api.users import UserDirectory, follow_keys, read_secret
from chockstone.backends.protocol import Worker
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.supervisor import WorkerSupervisor
from chockstone.catalog import Catalog, CatalogError, EngineLock, SqliteGuard
from chockstone.checkpoints import open_store
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.catalog_claim import CatalogRefused, take_catalog
from chockstone.engine.ownership.clock import ServerClock
from chockstone.engine.ownership.keys_record import KeysRecord
from chockstone.engine.ownership.lost_catalog import refuse_new_catalog
from chockstone.engine.storage.archive_storage import ArchiveStorage

log = logging.getLogger(__name__)
_DATABASE_SECONDS: Final = 60.0  # for a database server that starts when this one does
_LOCK_SECONDS: Final = 10.0  # for a server that was here before to end
_LAST_ANSWERS_SECONDS: Final = 3.0  # for clients to fetch what was finished last


def run(config: ServerConfig, prepared: Prepared, *, announce: Announce) -> int:
    """Serve until a signal says stop; ``announce`` is called once it answers. Returns the exit code.

    Raises CannotStart.
    """
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        return runner.run(_serve(config, prepared, announce))


async def _serve(config: ServerConfig, prepared: Prepared, announce: Announce) -> int:
    sock = prepared.sock
    try:
        models = describe_models(config.models)
        secret = read_secret(config.data / "token-secret")
        store = open_store(config.store_url)
        catalog = await Catalog.reach(config.database_url, wait_seconds=_DATABASE_SECONDS)
        await refuse_new_catalog(catalog, store, data=config.data, is_elsewhere=config.database is not None)
        lock = await _take(catalog, config)
        guard = None if catalog.path is None else SqliteGuard(catalog.path)
    except (CatalogError, CatalogRefused, StoreError, OSError, ValueError) as error:
        raise CannotStart(str(error)) from error
    stop = asyncio.Event()
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        stop.set()

    def lost(reason: str) -> None:
        engine.worker_lost(reason)

    backend = _backend(config, prepared, on_lost=lost, on_fatal=fail)
    storage = ArchiveStorage(store)
    clock = ServerClock(config.data)
    sources = SamplerSources()
    engine = Engine(
        await _with_sampler(config, backend, storage),
        catalog,
        storage,
        data=config.data,
        durability=config.durability,
        limits=config.limits,
        rules=config.storage,
        now=clock.now,
        monotonic=clock.elapsed,
        trusts_ages=clock.trusts_ages,
        on_session_end=sources.forget_session,
    )
    keys = KeysRecord(config.data)
    users = UserDirectory(config.keys, secret=secret, now=lambda: datetime.now(UTC), keys_required=keys.is_there)
    context = Context(config, engine, users, models, sources, signer=Signer(secret), now=clock.now)
    app = create_app(context)
    get_ready(app)
    watchdog = context.loop_health.watchdog()
    watchdog.start(asyncio.get_running_loop())
    server = http_server(app)
    try:
        stored = await catalog.keys.list()
        refuse_open_door(config, has_keys=bool(config.keys or stored), keys=keys)
        users.reload(stored)  # before the first request, which must not find the door open
        if not users.is_open:
            keys.write()
        await engine.start()
    except (CatalogError, OSError) as error:
        raise CannotStart(str(error)) from error
    following = asyncio.create_task(follow_keys(users, catalog, remember=keys.write))
    reporting = asyncio.create_task(context.refused_keys.keep_reporting())
    end = partial(_end, backend)
    watch = FileWatch(config.data, prepared.lock, guard)
    keeping = [asyncio.create_task(watch.keep(end)), asyncio.create_task(clock.keep())]
    if lock is not None:
        keeping.append(asyncio.create_task(lock.keep(end)))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    stop_on_signals(stop, at_once=backend.kill)
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    announce(sock.getsockname()[1], users.names)
    await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: what is running is finished, nothing new is taken; once more stops at once")
    await engine.stop()
    await engine.futures.collected(_LAST_ANSWERS_SECONDS)
    context.polls.end()
    server.should_exit = True
    await serving
    following.cancel()
    reporting.cancel()
    for task in keeping:
        task.cancel()
    await asyncio.to_thread(storage.close)
    if lock is not None:
        await lock.release()
    if guard is not None:
        guard.close()
    await catalog.close()
    watchdog.stop()
    for reason in failures:
        log.error("the worker cannot start: %s", reason)
    return 1 if failures else 0


async def _take(catalog: Catalog, config: ServerConfig) -> EngineLock | None:
    """Of this version on return. A catalog in the data directory goes and comes with it, and has its lock."""
    if config.database is None:
        await catalog.bring_up_to_date()
        return None
    return await take_catalog(
        catalog,
        config.data,
        now=datetime.now(UTC),
        wait_seconds=_LOCK_SECONDS,
        on_wait=lambda: log.warning("waiting for the server that uses the catalog %s to end", catalog.shown_url),
    )


def _end(backend: WorkerSupervisor, reason: str) -> None:
    """An engine whose data or catalog may be another's must not do anything more, not even stop in good order."""
    log.critical("the server ends at once, and nothing acknowledged is lost: %s", reason)
    backend.kill()
    os._exit(1)


def _backend(
    config: ServerConfig, prepared: Prepared, *, on_lost: Callable[[str], None], on_fatal: Callable[[str], None]
) -> WorkerSupervisor:
    told, first, inherit = prepared.worker_config, prepared.worker, [prepared.lock]
    if config.backend == "ray":
        return RayBackend(ray_plan(config), told, on_lost=on_lost, on_fatal=on_fatal, first=first, inherit=inherit)
    return LocalBackend(told, on_lost=on_lost, on_fatal=on_fatal, first=first, inherit=inherit)


async def _with_sampler(config: ServerConfig, backend: WorkerSupervisor, storage: ArchiveStorage) -> Worker:
    """Samples are its own, or those of vLLM servers."""
    if config.sampler != "vllm":
        return backend
    from chockstone.backends.supervision.vllm_backend import (  # late: most do without
        CannotSample,
        VllmBackend,
        VllmPlan,
    )

    plan = VllmPlan(
        config.vllm_urls,
        config.models,
        config.adapters,
        config.vllm_max_loras,
        are_shared=config.vllm_adapters is not None,
    )
    try:
        return await VllmBackend.open(backend, plan, storage.store)
    except CannotSample as error:
        raise CannotStart(str(error)) from error
