"""The rank-0 listener: accepts one connection, that of rank 0, which authenticates with a secret token."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from typing import Final

from chockstone.backends.channel import AsyncChannel

_TOKEN_BYTES: Final = 32
_TOKEN_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 10  # before the kernel probes an idle connection
_PROBE_SECONDS: Final = 5
_PROBES: Final = 4


class RankListener:
    """Listens on one address until a connection has sent the token, and then no longer."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        self.port = 0
        self._server: asyncio.Server | None = None
        self.connected: asyncio.Future[AsyncChannel] = asyncio.get_running_loop().create_future()

    async def open(self, host: str) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, 0, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = b""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TOKEN_SECONDS):
                received = await reader.readexactly(_TOKEN_BYTES)
        if self.connected.done() or not hmac.compare_digest(received, self.token.encode()):
            writer.close()
            return
        keep_alive(writer.get_extra_info("socket"))
        self.connected.set_result(AsyncChannel(reader, writer))
        self.close()


def connect_to_listener(host: str, port: int, token: str) -> socket.socket:
    """Connect to the listener and authenticate. Raises OSError."""
    sock = socket.create_connection((host, port), timeout=_TOKEN_SECONDS)
    try:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        sock.sendall(token.encode())
    except OSError:
        sock.close()
        raise
    return sock


def keep_alive(sock: socket.socket) -> None:
    """Close the connection to a machine that is gone after half a minute of silence."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    timeout_seconds = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * timeout_seconds)  # for unacknowledged data
