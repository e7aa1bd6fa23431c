"""An HTTP client for a Chockstone server, with its refusals explained.

Speaks JSON under ``/api/v1``. Redirects are not followed but returned, so that an API key reaches no other host. A busy
server is asked again a few times.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.output.reporting import CommandFailed

Json = dict[str, Any]  # Any: JSON

PAGE: Final = 1000
_ANSWER_SECONDS: Final = 60.0
LONG_SECONDS: Final = 6 * 3600.0  # for work that reads checkpoints in full
_ATTEMPTS: Final = 5
_BUSY: Final = (429, 503)
_SCHEMES: Final = ("http", "https")
_MOST_WAIT_SECONDS: Final = 5.0


class ServerUnreachable(CommandFailed):
    """No server answers, or it is no Chockstone server, or it failed."""

    exit_code = ExitCode.UNREACHABLE


class ServerDenied(CommandFailed):
    """Who is asking may not do this."""

    exit_code = ExitCode.UNREACHABLE


class NotThere(CommandFailed):
    """What was asked for is not there, or not the caller's."""

    exit_code = ExitCode.FAILED


class FoundDamaged(CommandFailed):
    """The checkpoint cannot be used, as the server knows by now."""

    exit_code = ExitCode.FAILED


class ServerRefused(CommandFailed):
    """The caller has to change something."""

    exit_code = ExitCode.USAGE


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # Any: as urllib calls it
        return None


@dataclass(frozen=True, slots=True)
class Server:
    """Made by ``connect``; nothing is asked until a method is called. May be used from several threads."""

    url: str
    key: str = field(repr=False)
    _opener: OpenerDirector = field(repr=False, compare=False)

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Json:
        return self.ask("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = _ANSWER_SECONDS) -> Json:
        return self.ask("POST", path, {} if body is None else body, seconds=seconds)

    def put(self, path: str, body: Mapping[str, Any]) -> Json:
        return self.ask("PUT", path, body)

    def delete(self, path: str, *, seconds: float = _ANSWER_SECONDS) -> Json:
        return self.ask("DELETE", path, seconds=seconds)

    def pages(self, path: str, noun: str) -> Iterator[Json]:
        """All that a list with a cursor holds, page by page. What moves meanwhile may come twice."""
        offset = 0
        while True:
            page = self.get(path, {"limit": PAGE, "offset": offset})
            yield from page[noun]
            offset += len(page[noun])
            if not page[noun] or offset >= page["cursor"]["total_count"]:
                return

    def place(self, path: str) -> str:
        """Where a redirect, or an answer that names a ``url``, leads."""
        with self._send("GET", path, None, _ANSWER_SECONDS) as answer:
            found = answer.headers.get("Location") or self._document(answer.read()).get("url")
        if not found:
            raise ServerUnreachable(f"the server at {self.url} returned no download URL for {path!r}")
        place = urljoin(f"{self.url}/", str(found))
        if urlsplit(place).scheme not in _SCHEMES:
            raise ServerUnreachable(
                f"the server at {self.url} returned the download URL {place!r:.80}, which is not http or https"
            )
        return place

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = _ANSWER_SECONDS
    ) -> Json:
        """The answer's JSON; empty where there is none. Raises one of the errors above."""
        with self._send(method, path, body, seconds) as answer:
            return self._document(answer.read())

    def open(
        self, path: str, *, headers: Mapping[str, str] | None = None, seconds: float = _ANSWER_SECONDS
    ) -> Any:  # Any: urllib's answer
        """The answer to a GET request, to be read as it comes, and closed. Raises one of the errors above."""
        return self._send("GET", path, None, seconds, headers)

    def _document(self, content: bytes) -> Json:
        try:
            document = json.loads(content) if content else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ServerUnreachable(f"{self.url} is not a Chockstone server; {_NAME_ANOTHER}")
        return document

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        more_headers: Mapping[str, str] | None = None,
    ) -> Any:
        # Any: urllib's answers, and its errors, which read the same
        headers = {"X-API-Key": self.key, "Accept": "application/json", **(more_headers or {})}
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        request = Request(f"{self.url}/api/v1/{path}", content, headers, method=method)  # noqa: S310  # http only
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._opener.open(request, timeout=seconds)
            except HTTPError as error:
                if error.code in (301, 302, 303, 307, 308):
                    return error
                with error:
                    if error.code not in _BUSY or attempt == _ATTEMPTS:
                        raise self._explain(error, path) from None
                time.sleep(min(_MOST_WAIT_SECONDS, _retry_after(error)))
            except TimeoutError:
                raise ServerUnreachable(f"the server at {self.url} did not answer in {seconds:.0f} s") from None
            except (URLError, OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise ServerUnreachable(
                    f"no server answers at {self.url}: {reason}. Start one with `chockstone serve`; {_NAME_ANOTHER}"
                ) from None
        raise AssertionError("the last attempt returns or raises")

    def _explain(self, error: HTTPError, path: str) -> CommandFailed:
        detail, code = read_refusal(error)
        if error.code == 401:
            return ServerDenied(
                f"{detail or 'the API key is refused'}. Server: {self.url}. Set a key with --key or TINKER_API_KEY."
            )
        if error.code == 403:
            return ServerDenied(detail or f"{self.url} does not allow this")
        if error.code in (404, 405) and (detail is None or detail in ("Not Found", "Method Not Allowed")):
            return ServerUnreachable(
                f"the server at {self.url} has no route {path.partition('?')[0]!r}: it is older than this program, "
                f"or not a Chockstone server; {_NAME_ANOTHER}"
            )
        if error.code == 404:
            return NotThere(str(detail))
        if code == "damaged":
            return FoundDamaged(str(detail))
        if 400 <= error.code < 500 and error.code not in _BUSY:
            return ServerRefused(detail or f"the server at {self.url} refused this with status {error.code}")
        return ServerUnreachable(f"the server at {self.url} failed with status {error.code}: {detail or error.reason}")


_NAME_ANOTHER: Final = "name another server with --server or TINKER_BASE_URL"


def connect(url: str, key: str) -> Server:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ServerRefused(f"{url!r} is not the URL of a server; write one such as http://127.0.0.1:8000")
    if not key.isascii() or not key.isprintable():
        raise ServerRefused("the API key has characters that no key has; set TINKER_API_KEY or --key")
    return Server(url.rstrip("/"), key, opener_for(parts.hostname))


def opener_for(host: str) -> OpenerDirector:
    """What asks this host: through the proxy that the environment names, unless it is this machine."""
    proxies = [ProxyHandler({})] if _is_loopback(host) else []
    return build_opener(_NoRedirects, *proxies)


def segment(text: str) -> str:
    """As a part of a path."""
    return quote(text, safe=":")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_refusal(error: HTTPError) -> tuple[str | None, str | None]:
    """The detail and the code in the body of an error response; None for what it lacks."""
    try:
        document = json.loads(error.read())
        detail, code = document["detail"], document.get("code")
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return None, None
    return detail if isinstance(detail, str) else json.dumps(detail), code if isinstance(code, str) else None


def _retry_after(error: HTTPError) -> float:
    try:
        return max(0.1, float(error.headers.get("Retry-After") or 1))
    except ValueError:
        return 1.0
