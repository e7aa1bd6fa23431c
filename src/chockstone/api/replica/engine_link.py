"""The link: connections from a front to the server that has the engine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterable, Sequence
from typing import Final

import aiohttp
from fastapi import HTTPException
from yarl import URL

from chockstone.api.admission.limits import KEEP_ALIVE_SECONDS

_CONNECT_SECONDS: Final = 5.0
_SILENCE_MILLISECONDS: Final = 15_000  # of a machine, not of a server: what it is sent must be received
_PROBE_SECONDS: Final = 5
_HEADER_BYTES: Final = 64 << 10
_NOTHING_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class EngineAway(HTTPException):
    """Clients try again, by which time it may be there."""

    def __init__(self, url: str, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        super().__init__(503, f"the engine at {url!r} does not answer: {reason}", {"Retry-After": "1"})


class EngineLink:
    """To be made on the event loop that uses it, and closed there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.via = f"1.1 chockstone-{secrets.token_hex(8)}"  # in every request, by which a loop is noticed
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # each long poll holds one
                keepalive_timeout=KEEP_ALIVE_SECONDS - 15,  # or the engine hangs up just as a request is sent
                socket_factory=_watched_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # nothing of one client reaches another
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),  # clients know how long to wait
            auto_decompress=False,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )

    async def ask(
        self,
        method: str,
        target: str,
        *,
        headers: Sequence[tuple[str, str]],
        body: AsyncIterable[bytes] | None = None,
    ) -> aiohttp.ClientResponse:
        """The answer as soon as it begins, to be closed by the caller. ``target`` is as it stands in a request line.

        Raises EngineAway, also if ``body`` fails.
        """
        try:
            return await self._session.request(
                method,
                URL(self.url + target, encoded=True),
                headers=[*headers, ("Via", self.via)],
                data=body,
                allow_redirects=False,
                skip_auto_headers=_NOTHING_ADDED,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineAway(self.url, error) from error

    async def close(self) -> None:
        await self._session.close()


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """One that notices, while it waits, that the machine at the other end is gone without a word."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MILLISECONDS)
    return sock
