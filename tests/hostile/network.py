"""The app behind a real socket, with limits that a test chooses, and clients that write raw bytes to it."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from chockstone.api.admission.limits import ConnectionLimits, UploadLimits
from chockstone.api.admission.uploads import Uploads
from chockstone.api.context import Context
from chockstone.api.serving.http_server import http_config
from support.api.loopback_server import ServerThread, serving
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
        self._thread = ServerThread(self._serve)
        self.port = self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.stop()

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[int]:
        model = self.home / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"architectures": ["Tiny"], "max_position_embeddings": 128}))
        (self.home / "data").mkdir()
        async with serve_in_process(
            self.home / "data", {"tiny": model}, keys=self.keys, uploads=self.uploads
        ) as served:
            self.context: Context = served.app.state.context
            config = http_config(served.app, self.connections)
            self._connections = config.open_connections
            async with serving(config) as port:
                yield port

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
