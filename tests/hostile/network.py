"""The app behind a real socket, with limits that a test chooses, and clients that write raw bytes to it."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from chockstone.api.admission.limits import ConnectionLimits, UploadLimits
from chockstone.api.admission.uploads import Uploads
from chockstone.api.context import Context
from chockstone.api.serving.listening import HttpServer, http_config
from chockstone.api.serving.preparing import bind
from support.served import serve_in_process

KEYS = {"ann": "tml-of-ann", "bob": "tml-of-bob", "root": "tml-of-root"}
_WAIT_SECONDS = 60.0  # for what should happen at once


@dataclass
class Network:
    """A server in a thread of its own while it is entered."""

    home: Path
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    limits: UploadLimits = field(default_factory=lambda: UploadLimits(body_bytes=1 << 20))

    def __enter__(self) -> Network:
        self.uploads = Uploads(self.limits)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(_WAIT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_WAIT_SECONDS)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        model = self.home / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 128}))
        (self.home / "data").mkdir()
        async with serve_in_process(
            self.home / "data", {"tiny": model}, keys=self.keys, uploads=self.uploads
        ) as served:
            self.context: Context = served.app.state.context
            with bind("127.0.0.1", 0) as sock:
                config = http_config(served.app, self.connections)
                self._connections = config.open_connections
                server = HttpServer(config)
                serving = asyncio.create_task(server.serve(sockets=[sock]))
                while not server.started:
                    await asyncio.sleep(0.005)
                self.port = sock.getsockname()[1]
                self._ready.set()
                await self._stop.wait()
                server.should_exit = server.force_exit = True
                await serving

    @property
    def open_connections(self) -> int:
        return self._connections.count

    def connect(self) -> Wire:
        return Wire.to(self.port)

    def http(self, key: str = KEYS["bob"]) -> httpx.Client:
        """A client with manners; paths are relative to ``/api/v1/``."""
        url = f"http://127.0.0.1:{self.port}/api/v1/"
        return httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=_WAIT_SECONDS, trust_env=False)


@dataclass(eq=False)
class Wire:
    sock: socket.socket

    @classmethod
    def to(cls, port: int) -> Wire:
        """A new connection to a server on this machine."""
        sock = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, data: bytes) -> bool:
        """Whether the server is still there to take it."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self) -> Answer:
        """The next one, as far as its length says."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.receive()
            assert piece, f"the connection ended after {data!r}"
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        status, _, fields = head.partition(b"\r\n")
        named = dict(line.lower().split(b": ", 1) for line in fields.split(b"\r\n"))
        while len(body) < int(named[b"content-length"]):
            piece = self.receive()
            assert piece, f"the connection ended after {data + body!r}"
            body += piece
        return Answer(int(status.split()[1]), body)

    def rest(self) -> bytes:
        """All that comes until the server ends the connection; fails if it does not."""
        data = b""
        while piece := self.receive():
            data += piece
        return data

    def drip(self, data: bytes) -> bytes:
        """Send a byte now and then until the server ends the connection; what it answered."""
        received = b""
        for at in range(3000):
            if not self.send(data[at % len(data) :][:1]):
                return received + self.rest()
            if select.select([self.sock], [], [], 0.02)[0]:
                if not (piece := self.receive()):
                    return received
                received += piece
        raise AssertionError("the server took 3000 single bytes")

    def receive(self) -> bytes:
        """What has come, at most 64 KiB; nothing when the server ended the connection."""
        try:
            return self.sock.recv(1 << 16)
        except ConnectionResetError:
            return b""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def detail(self) -> str:
        return str(json.loads(self.body)["detail"])


def head(line: str = "GET /api/v1/healthz", *fields: str, host: str | None = "127.0.0.1") -> bytes:
    """The head of a request."""
    named = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([f"{line} HTTP/1.1", *named, *fields, "", ""]).encode()
