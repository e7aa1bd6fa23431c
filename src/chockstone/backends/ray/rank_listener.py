"""The door: where rank 0 comes in, once, with a token that nobody else has."""

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
_IDLE_SECONDS: Final = 10  # before an idle connection is asked whether it still is one
_PROBE_SECONDS: Final = 5
_PROBES: Final = 4


class RankListener:
    """Listens on one address, and closes behind the first who has the token."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(_TOKEN_BYTES // 2)
        self.port = 0
        self._server: asyncio.Server | None = None
        self.entered: asyncio.Future[AsyncChannel] = asyncio.get_running_loop().create_future()

    async def open(self, host: str) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._meet, host, 0, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        given = b""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TOKEN_SECONDS):
                given = await reader.readexactly(_TOKEN_BYTES)
        if self.entered.done() or not hmac.compare_digest(given, self.token.encode()):
            writer.close()
            return
        keep_alive(writer.get_extra_info("socket"))
        self.entered.set_result(AsyncChannel(reader, writer))
        self.close()


def knock(host: str, port: int, token: str) -> socket.socket:
    """Come in. Raises OSError."""
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
    """A machine that is gone says no farewell: its connections end after half a minute of silence."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    patience_seconds = _IDLE_SECONDS + _PROBE_SECONDS * _PROBES
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * patience_seconds)  # of what was sent
