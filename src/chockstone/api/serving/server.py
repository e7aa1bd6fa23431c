"""The server process: it opens the catalog and the store, starts the engine, serves HTTP, and shuts down.

The API answers as soon as the socket is bound. Meanwhile the worker loads torch and the models; requests that
need the worker wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chockstone.api.admission.browser import BrowserPages
from chockstone.api.app import create_app
from chockstone.api.config import ServerConfig
from chockstone.api.context import Context, audited_refusals
from chockstone.api.model_descriptions import ModelDescription, describe_models
from chockstone.api.sampler_sources import SamplerSources
from chockstone.api.serving.file_watch import FileWatch
from chockstone.api.serving.http_server import event_loop, get_ready, http_server, start_serving, stop_on_signals
from chockstone.api.serving.startup import Announce, CannotStart, Prepared, require_keys
from chockstone.api.serving.workers import ServerWorkers
from chockstone.api.signed_urls import SignedUrls
from chockstone.api.users import UserDirectory, follow_keys, read_secret
from chockstone.backends.protocol import SamplerGap
from chockstone.catalog import Catalog, CatalogError, EngineLock, SqliteGuard
from chockstone.checkpoints import Store, open_store
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.engine import Engine
from chockstone.engine.ownership.catalog_claim import CatalogRefused, take_catalog
from chockstone.engine.ownership.clock import ServerClock
from chockstone.engine.ownership.data_directory import TRACKING
from chockstone.engine.ownership.keys_record import KeysRecord
from chockstone.engine.ownership.lost_catalog import refuse_new_catalog
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.tracking.tracking import Tracking
from chockstone.telemetry import tracing
from chockstone.telemetry.instruments import Instruments

log = logging.getLogger(__name__)
_DATABASE_SECONDS: Final = 60.0  # to wait for a database server that starts at the same time
_LOCK_SECONDS: Final = 10.0  # to wait for the previous server to end
_LAST_ANSWERS_SECONDS: Final = 3.0  # for clients to fetch the last results before shutdown


MakeConsole = Callable[[Context, bytes], BrowserPages]  # of the context and the secret that signs tokens


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the server opens before it has an engine."""

    models: dict[str, ModelDescription]
    secret: bytes
    store: Store
    catalog: Catalog
    lock: EngineLock | None  # None: the catalog is in the data directory, whose lock covers it
    guard: SqliteGuard | None  # None: the catalog is not a file


def run(
    config: ServerConfig, prepared: Prepared, *, announce: Announce, make_console: MakeConsole | None = None
) -> int:
    """Serve until a signal says stop; ``announce`` is called once the server answers. Returns the exit code.

    ``make_console`` None: without a web console. Raises CannotStart.
    """
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        return runner.run(_serve(config, prepared, announce, make_console))


async def _serve(config: ServerConfig, prepared: Prepared, announce: Announce, make_console: MakeConsole | None) -> int:
    await asyncio.to_thread(tracing.start, config.tracing, role="server")
    instruments = Instruments()
    opened = await _open(config, instruments)
    catalog, storage, clock = opened.catalog, ArchiveStorage(opened.store), ServerClock(config.data)
    stop = asyncio.Event()
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        stop.set()

    def lost(replica: int, reason: str) -> None:
        engine.worker_lost(reason, replica)

    def not_added(replica: int, reason: str) -> None:
        engine.membership.note_failed(replica, reason)

    async def measured(gap: SamplerGap) -> None:
        await engine.gaps.record(gap)

    workers = ServerWorkers(config, prepared, on_lost=lost, on_fatal=fail, on_not_added=not_added, on_gap=measured)
    sources = SamplerSources()
    opened_workers = await workers.open(storage.store)
    engine = Engine(
        opened_workers,
        catalog,
        storage,
        data=config.data,
        durability=config.durability,
        limits=config.limits,
        rules=config.storage,
        instruments=instruments,
        now=clock.now,
        monotonic=clock.elapsed,
        trusts_ages=clock.trusts_ages,
        on_session_end=sources.forget_session,
        gap_meter=workers.gap_meter,
    )
    keys = KeysRecord(config.data)
    users = UserDirectory(config.keys, secret=opened.secret, now=lambda: datetime.now(UTC), keys_required=keys.is_there)
    context = Context(
        config,
        engine,
        users,
        opened.models,
        signed_urls=SignedUrls(opened.secret, users, now=clock.now),
        sampler_sources=sources,
        refused_keys=audited_refusals(engine),
        now=clock.now,
    )
    tracking = Tracking(config.track, config.data / TRACKING, engine.history, catalog, now=clock.now)
    app = create_app(context, console=None if make_console is None else make_console(context, opened.secret))
    get_ready(app)
    watchdog = context.loop_health.watchdog()
    watchdog.start(asyncio.get_running_loop())
    server = http_server(app)
    try:
        await _load_keys(users, catalog, config, keys)
        await engine.start()
    except (CatalogError, OSError) as error:
        raise CannotStart(str(error)) from error
    tracking.start()
    background = _start_background(context, keys, clock, opened, prepared, end=partial(_end, workers.kill))
    stop_on_signals(stop, at_once=workers.kill)
    serving = await start_serving(server, prepared.claim.sock)
    announce(prepared.claim.sock.getsockname()[1], users.names)
    await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    prepared.claim.note_stopping()
    log.info("stopping: the server finishes running operations and accepts no new ones; press Ctrl-C again to exit now")
    await engine.stop()
    await tracking.stop()
    await engine.futures.collected(_LAST_ANSWERS_SECONDS)
    context.polls.end()
    server.should_exit = True
    await serving
    for task in background:
        task.cancel()
    await asyncio.to_thread(storage.close)
    await _close(opened)
    await asyncio.to_thread(tracing.stop)
    watchdog.stop()
    for reason in failures:
        log.error("the worker cannot start: %s", reason)
    return 1 if failures else 0


async def _open(config: ServerConfig, instruments: Instruments) -> _Opened:
    """Raises CannotStart."""
    try:
        models = describe_models(config.models)
        secret = read_secret(config.data / "token-secret")
        store = open_store(config.store_url)
        catalog = await Catalog.reach(config.database_url, wait_seconds=_DATABASE_SECONDS, instruments=instruments)
        await refuse_new_catalog(catalog, store, data=config.data, is_elsewhere=config.database is not None)
        lock = await _claim_catalog(catalog, config)
        guard = None if catalog.path is None else SqliteGuard(catalog.path)
    except (CatalogError, CatalogRefused, StoreError, OSError, ValueError) as error:
        raise CannotStart(str(error)) from error
    return _Opened(models, secret, store, catalog, lock, guard)


async def _close(opened: _Opened) -> None:
    if opened.lock is not None:
        await opened.lock.release()
    if opened.guard is not None:
        opened.guard.close()
    await opened.catalog.close()


async def _load_keys(users: UserDirectory, catalog: Catalog, config: ServerConfig, keys: KeysRecord) -> None:
    """Before the first request, which must not be served as on a server without keys. Raises CannotStart."""
    stored = await catalog.keys.list()
    require_keys(config, has_keys=bool(config.keys or stored), keys=keys)
    users.reload(stored)
    if not users.is_open:
        keys.write()


def _start_background(
    context: Context,
    keys: KeysRecord,
    clock: ServerClock,
    opened: _Opened,
    prepared: Prepared,
    *,
    end: Callable[[str], None],
) -> list[asyncio.Task[None]]:
    """Tasks that run as long as the server. Those that find its files or its lock lost call ``end``."""
    watch = FileWatch(context.config.data, prepared.claim.lock, opened.guard)
    tasks = [
        follow_keys(context.users, opened.catalog, remember=keys.write),
        context.refused_keys.keep_reporting(),
        watch.keep(end),
        clock.keep(),
        *context.status.tasks(),
    ]
    if opened.lock is not None:
        tasks.append(opened.lock.keep(end))
    return [asyncio.create_task(task) for task in tasks]


async def _claim_catalog(catalog: Catalog, config: ServerConfig) -> EngineLock | None:
    """On return the catalog has this version's tables and no other engine uses it.

    None: the catalog is in the data directory, whose lock covers it.
    """
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


def _end(kill: Callable[[], None], reason: str) -> None:
    """Exit at once: an engine whose data or catalog may belong to another server must not write, even to shut down."""
    log.critical("the server ends at once, and nothing acknowledged is lost: %s", reason)
    kill()
    os._exit(1)
