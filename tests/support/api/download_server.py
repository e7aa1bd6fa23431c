"""A server of downloads alone: the real routes, catalog and store behind uvicorn on loopback, in a thread."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import uvicorn
import uvloop
from fastapi import APIRouter, FastAPI, Request

from chockstone.api import errors
from chockstone.api.context import ContextDep
from chockstone.api.downloads import routes as downloads
from chockstone.api.signed_urls import SignedUrls
from chockstone.api.users import Caller, UserDirectory
from chockstone.catalog import Catalog, CheckpointRow
from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.api.loopback_server import ServerThread, serving
from support.api.server_configs import default_config

T = TypeVar("T")
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN = "s:train:0"
FILES = {"adapter_config.json": b'{"r": 4}', "notes/README.md": b"# notes\n", "checkpoint_complete": b""}
_WAIT_SECONDS = 30.0


class Found:
    """What downloads report about archives, as the engine takes it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def found_damaged(self, row: CheckpointRow, reason: str) -> None:
        await self._catalog.checkpoints.mark_damaged(row.save_id, reason)

    async def found_missing(self, row: CheckpointRow) -> None:
        await self._catalog.checkpoints.mark_damaged(row.save_id, "its archive is not in the store")


class DownloadServer:
    """Serves from entering to leaving. ``now`` is the server's clock, and the test's to set."""

    def __init__(self, home: Path, *, public_url: str | None = None, root_path: str = "") -> None:
        self.store = FileStore(home / "checkpoints")
        self.now = NOW
        self._home = home
        self._config = default_config(home, public_url=public_url)
        self._root_path = root_path
        self._thread = ServerThread(self._serve, loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> DownloadServer:
        self.port = self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._thread.stop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it where the server runs."""
        done: T = self._thread.do(work)
        return done

    def save(self, name: str, *, size_bytes: int = 100_000, expires_at: datetime | None = None) -> CheckpointRow:
        """A checkpoint with one tensor of that size and some files."""
        tensor = np.random.default_rng(len(name)).integers(0, 256, size_bytes, dtype=np.uint8)
        with Checkpointer(self.store, now=lambda: NOW) as checkpointer:
            checkpointer.save({"model": {"w": tensor}}, name=f"runs/{name}", files=FILES).result()
        return self.do(self._enter(name, expires_at))

    async def _enter(self, name: str, expires_at: datetime | None) -> CheckpointRow:
        archive = f"runs/{name}"
        return await self.catalog.checkpoint_saves.register(
            run_id=RUN,
            kind="weights",
            name=name,
            owner="local",
            archive=archive,
            base_model="m",
            spec={"rank": 4},
            created_at=NOW,
            size_bytes=self.store.stat(archive).size,
            expires_at=expires_at,
        )

    def file(self, row: CheckpointRow) -> Path:
        return self.store.path(row.archive)

    def delete(self, row: CheckpointRow) -> None:
        """Row first, then the file, as the engine does."""
        self.do(self.catalog.checkpoints.discard([row], reason="deleted", now=NOW, purge_at=NOW))
        self.store.delete(row.archive)

    def row(self, row: CheckpointRow) -> CheckpointRow | None:
        return self.do(self.catalog.checkpoints.get_save(row.save_id))

    def url(self, row: CheckpointRow, member: str | None = None) -> str:
        """Signed for an hour, made by the server in a request of ours."""
        connection = self.connect()
        connection.request("GET", f"/sign?save_id={row.save_id}&member={member or ''}")
        url: str = connection.getresponse().read().decode()
        connection.close()
        return url

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=_WAIT_SECONDS)

    def ask(self, url: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = self.connect()
        try:
            connection.request(method, urlsplit(url).path, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def begin(self, url: str, *, receive_bytes: int = 256 << 10) -> socket.socket:
        """A client that has asked and read nothing yet; its own buffer takes little."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(_WAIT_SECONDS)
        client.connect(("127.0.0.1", self.port))
        client.sendall(f"GET {urlsplit(url).path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        return client

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[int]:
        storage = ArchiveStorage(self.store)
        async with await Catalog.open(f"sqlite:///{self._home}/catalog.sqlite3") as self.catalog:
            await self.catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=NOW)
            await self.catalog.runs.create("s", 0, owner="local", base_model="m", spec={"rank": 4}, now=NOW)
            self.app = self._create_app(storage)
            config = uvicorn.Config(
                self.app, log_config=None, lifespan="off", root_path=self._root_path, timeout_graceful_shutdown=1
            )
            async with serving(config, waits_for_requests=True) as port:
                yield port
        storage.close()

    def _create_app(self, storage: ArchiveStorage) -> FastAPI:
        app = FastAPI()
        users = UserDirectory({}, secret=b"s" * 32, now=lambda: self.now)
        app.state.context = SimpleNamespace(
            config=self._config,
            signed_urls=SignedUrls(b"s" * 32, users, now=lambda: self.now),
            users=users,
            now=lambda: self.now,
            catalog=self.catalog,
            engine=SimpleNamespace(storage=storage, verifier=Found(self.catalog)),
        )
        routes = APIRouter(prefix="/api/v1")
        routes.include_router(downloads.routes)
        app.include_router(routes)
        errors.install(app)

        @app.get("/sign")
        async def sign(request: Request, context: ContextDep, save_id: int, member: str) -> Any:  # text
            row = await context.catalog.checkpoints.get_save(save_id)
            assert row is not None
            url = downloads.download_url(
                context, request, Caller("local"), row, member or None, expires_at=self.now + timedelta(hours=1)
            )
            return downloads.Response(url)

        return app


def open_descriptors(path: Path) -> int:
    """How many descriptors of this process are of that file, deleted or not."""
    count = 0
    for each in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{each}")
        except FileNotFoundError:
            continue
        count += target.removesuffix(" (deleted)") == str(path)
    return count


def wait_until(true: Any) -> None:  # a function without arguments
    deadline = time.monotonic() + _WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)
