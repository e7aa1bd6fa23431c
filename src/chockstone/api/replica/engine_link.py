"""The link: HTTP connections from an API replica to the server that has the engine."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import AsyncIterable, Sequence
from typing import Final

import aiohttp
from fastapi import HTTPException
from yarl import URL

from chockstone.api.admission.limits import KEEP_ALIVE_SECONDS

log = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 5.0
_SILENCE_MILLISECONDS: Final = 15_000  # without a TCP acknowledgement from the engine's machine
_PROBE_SECONDS: Final = 5
_HEADER_BYTES: Final = 64 << 10
_NOTHING_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class EngineAway(HTTPException):
    """The engine does not answer. Clients retry, because the status is 503. Only the log has the engine's address."""

    def __init__(self) -> None:
        super().__init__(503, "the engine does not answer this API replica; try again", {"Retry-After": "1"})


class EngineLink:
    """Create and close it on the event loop that uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_away = False  # at the last request
        self.via = f"1.1 chockstone-{secrets.token_hex(8)}"  # in every request, to detect a forwarding loop
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # each long poll holds one
                keepalive_timeout=KEEP_ALIVE_SECONDS - 15,  # shorter than the engine's own
                socket_factory=_watched_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # no cookie of one client reaches another
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS
            ),  # the client's own timeout applies
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
        """The answer as soon as it begins; the caller closes it. ``target`` is as in a request line.

        Raises EngineAway, also if ``body`` fails.
        """
        try:
            answer = await self._session.request(
                method,
                URL(self.url + target, encoded=True),
                headers=[*headers, ("Via", self.via)],
                data=body,
                allow_redirects=False,
                skip_auto_headers=_NOTHING_ADDED,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.away(error) from error
        if self._is_away:
            self._is_away = False
            log.info("engine reachable again url=%s", self.url)
        return answer

    def away(self, error: BaseException) -> EngineAway:
        """To be raised. The first of several failures in a row is logged, with the engine's address."""
        if not self._is_away:
            self._is_away = True
            log.warning("engine unreachable url=%s error=%s", self.url, str(error) or type(error).__name__)
        return EngineAway()

    async def close(self) -> None:
        await self._session.close()


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket with TCP keep-alive, which notices that the engine's machine is gone."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MILLISECONDS)
    return sock
