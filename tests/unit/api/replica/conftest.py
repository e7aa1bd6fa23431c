"""A replica between a real client and a real server, all on loopback and in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from chockstone.api.admission.hosts import Hosts
from chockstone.api.admission.limits import ConnectionLimits
from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.replica.app import ReplicaContext, create_replica
from chockstone.api.replica.callers import ReplicaCallers
from chockstone.api.replica.engine_link import EngineLink
from chockstone.api.replica.proxy import STALL_SECONDS, EngineProxy
from chockstone.api.serving.http_server import http_config
from chockstone.api.users import UserDirectory
from chockstone.catalog import Catalog
from chockstone.engine.failure_log import FailureLog
from support.api.loopback_server import serving
from support.postgres import catalog_url

App = Callable[[Scope, Receive, Send], Awaitable[None]]
KEYS = {"ann": "tml-of-ann", "bob": "tml-of-bob"}


@asynccontextmanager
async def listening(app: App, *, port: int = 0) -> AsyncIterator[str]:
    """Its URL, while it is served."""
    async with serving(http_config(app, ConnectionLimits()), port=port) as bound:
        yield f"http://127.0.0.1:{bound}"


@dataclass
class Replica:
    url: str
    engine: str
    app: FastAPI
    catalog: Catalog
    http: httpx.AsyncClient  # with Ann's key; paths are relative to the root

    async def raw(self, request: bytes) -> bytes:
        """All that is answered to these bytes, until the connection is closed."""
        reader, writer = await self.connect()
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return await asyncio.open_connection(host, int(port))


Start = Callable[..., Awaitable[Replica]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts replicas before an app that stands for the engine, or before nobody."""
    async with AsyncExitStack() as stack:
        numbers = itertools.count()

        async def make(
            engine: App | str,
            *,
            keys: dict[str, str] = KEYS,
            stall_seconds: float = STALL_SECONDS,
            database: str | None = None,
            port: int = 0,
        ) -> Replica:
            home = tmp_path / f"replica-{next(numbers)}"
            home.mkdir()
            url = engine if isinstance(engine, str) else await stack.enter_async_context(listening(engine))
            opening = Catalog.open(catalog_url(home)) if database is None else Catalog.look_into(database)
            catalog = await stack.enter_async_context(await opening)
            link = EngineLink(url)
            stack.push_async_callback(link.close)
            callers = ReplicaCallers(UserDirectory(keys, secret=b"f" * 32, now=lambda: datetime.now(UTC)), link)
            app = create_replica(
                ReplicaContext(catalog),
                link,
                callers,
                EngineProxy(link, stall_seconds=stall_seconds),
                hosts=Hosts(None),
                refused=RefusedKeys(),
                failures=FailureLog(),
            )
            replica = await stack.enter_async_context(listening(app, port=port))
            headers = {"X-API-Key": KEYS["ann"]}
            http = httpx.AsyncClient(base_url=replica, headers=headers, timeout=20, trust_env=False)
            return Replica(replica, url, app, catalog, await stack.enter_async_context(http))

        yield make


@dataclass
class Recorder:
    """Stands for the engine: notes what it was asked, and answers what it is told to."""

    status: int = 200
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b"{}"
    scopes: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(dict(scope))
        self.bodies.append(await read(receive))
        await answer(send, self.body, status=self.status, headers=self.headers)

    def header(self, name: str) -> list[bytes]:
        """Its values in the last request."""
        return [value for key, value in self.scopes[-1]["headers"] if key == name.lower().encode()]


async def read(receive: Receive) -> bytes:
    body = b""
    while True:
        message: Message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return body


async def answer(
    send: Send, body: bytes, *, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})
