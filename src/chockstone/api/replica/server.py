"""The process of an API replica: it serves HTTP, follows the keys in the catalog, and stops on a signal."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime
from socket import socket
from typing import Final

from chockstone.api.admission.hosts import Hosts
from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.config import ServerConfig
from chockstone.api.replica.app import ReplicaContext, create_replica
from chockstone.api.replica.callers import ReplicaCallers
from chockstone.api.replica.engine_link import EngineLink
from chockstone.api.replica.proxy import EngineProxy
from chockstone.api.serving.http_server import event_loop, get_ready, http_server, start_serving, stop_on_signals
from chockstone.api.serving.startup import Announce, CannotStart, bind, configure_process, require_keys
from chockstone.api.users import UserDirectory, follow_keys
from chockstone.catalog import Catalog, CatalogError
from chockstone.engine.failure_log import FailureLog
from chockstone.telemetry import tracing
from chockstone.telemetry.instruments import Instruments

log = logging.getLogger(__name__)
_DATABASE_SECONDS: Final = 60.0  # to wait for a database server that starts at the same time


def run(config: ServerConfig, engine: str, *, announce: Announce) -> int:
    """Serve until a signal says stop; ``announce`` is called once the replica answers. Returns the exit code.

    Raises CannotStart. The engine need not run yet: clients retry until it answers.
    """
    configure_process(config)
    with bind(config.host, config.port) as sock, asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_serve(config, engine, sock, announce))
    return 0


async def _serve(config: ServerConfig, engine: str, sock: socket, announce: Announce) -> None:
    instruments = Instruments(has_engine=False)
    await asyncio.to_thread(tracing.start, config.tracing, role="replica")
    try:
        catalog = await Catalog.look_into(config.database_url, wait_seconds=_DATABASE_SECONDS, instruments=instruments)
        keys = await catalog.keys.list()
    except (CatalogError, OSError) as error:
        raise CannotStart(str(error)) from error
    users = UserDirectory(config.keys, secret=secrets.token_bytes(32), now=lambda: datetime.now(UTC))
    users.reload(keys)  # before the first request, which must not be served as without keys
    require_keys(config, has_keys=not users.is_open)
    link = EngineLink(engine)
    callers = ReplicaCallers(users, link)
    context = ReplicaContext(catalog, instruments)
    refused, failures = RefusedKeys(), FailureLog()
    app = create_replica(
        context,
        link,
        callers,
        EngineProxy(link),
        hosts=Hosts(config.public_url),
        refused=refused,
        failures=failures,
    )
    get_ready(app)
    watchdog = context.loop_health.watchdog()
    watchdog.start(asyncio.get_running_loop())
    server = http_server(app)
    background = [
        asyncio.create_task(task) for task in (follow_keys(users, catalog), refused.keep_reporting(), failures.keep())
    ]
    stop = asyncio.Event()
    stop_on_signals(stop, at_once=lambda: None)
    serving = await start_serving(server, sock)
    announce(sock.getsockname()[1], users.names)
    await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: open requests have three seconds; clients continue through another API replica")
    server.should_exit = True
    await serving
    for task in background:
        task.cancel()
    await link.close()
    await catalog.close()
    await asyncio.to_thread(tracing.stop)
    watchdog.stop()
