"""The process of a front: it listens, follows the keys in the catalog, and stops when it is told to."""

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
from chockstone.api.serving.listening import event_loop, get_ready, http_server, stop_on_signals
from chockstone.api.serving.preparing import Announce, CannotStart, begin, bind, refuse_open_door
from chockstone.api.users import UserDirectory, follow_keys
from chockstone.catalog import Catalog, CatalogError

log = logging.getLogger(__name__)
_DATABASE_SECONDS: Final = 60.0  # for a database server that starts when this one does


def run(config: ServerConfig, engine: str, *, announce: Announce) -> int:
    """Serve until a signal says stop; ``announce`` is called once it answers. Returns the exit code.

    Raises CannotStart. An engine that is not there yet is waited for by clients.
    """
    begin(config)
    with bind(config.host, config.port) as sock, asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_serve(config, engine, sock, announce))
    return 0


async def _serve(config: ServerConfig, engine: str, sock: socket, announce: Announce) -> None:
    try:
        catalog = await Catalog.look_into(config.database_url, wait_seconds=_DATABASE_SECONDS)
        keys = await catalog.keys.list()
    except (CatalogError, OSError) as error:
        raise CannotStart(str(error)) from error
    users = UserDirectory(config.keys, secret=secrets.token_bytes(32), now=lambda: datetime.now(UTC))
    users.reload(keys)  # before the first request, which must not find the door open
    refuse_open_door(config, has_keys=not users.is_open)
    link = EngineLink(engine)
    callers = ReplicaCallers(users, link)
    context = ReplicaContext(catalog)
    refused = RefusedKeys()
    app = create_replica(context, link, callers, EngineProxy(link), hosts=Hosts(config.public_url), refused=refused)
    get_ready(app)
    watchdog = context.loop_health.watchdog()
    watchdog.start(asyncio.get_running_loop())
    server = http_server(app)
    following = asyncio.create_task(follow_keys(users, catalog))
    reporting = asyncio.create_task(refused.keep_reporting())
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    stop = asyncio.Event()
    stop_on_signals(stop, at_once=lambda: None)
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    announce(sock.getsockname()[1], users.names)
    await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: what is on its way has three seconds; clients go on through another front")
    server.should_exit = True
    await serving
    following.cancel()
    reporting.cancel()
    await link.close()
    await catalog.close()
    watchdog.stop()
