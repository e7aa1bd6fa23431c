"""The connection: HTTP requests to one vLLM server, and their errors.

VllmError
├── Lost      no answer, or the server has failed: another server may succeed
└── Refused   the server refuses this request
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 2.0  # uvicorn closes idle connections after 5 seconds, even if a request has just been sent
_ANSWER_SECONDS: Final = 20.0  # for requests that compute nothing
_LOAD_SECONDS: Final = 300.0  # for an adapter, perhaps from a slow disk
_LARGE_BYTES: Final = 1 << 18  # larger JSON is parsed in a thread
_TOLD: Final = 1000  # maximum characters of an error message
_LATER: Final = (408, 429)  # answers of a proxy before an overloaded server
UNKNOWN: Final = 404  # the status for an unknown model or adapter
KEY: Final = "VLLM_API_KEY"  # environment variable, which vLLM itself reads, too


class VllmError(Exception):
    pass


class VllmConnectionLost(VllmError):
    """``was_sent``: the server has received the request, and may have died of it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class VllmRefused(VllmError):
    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Offer:
    """The models and adapters that a server lists."""

    models: dict[str, int]  # base model → longest context
    adapters: dict[str, str]  # name → directory


class Connection:
    """For one event loop. Closing it aborts requests in progress."""

    def __init__(self, url: str) -> None:
        self.url = url
        key = os.environ.get(KEY)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_SECONDS),
        )

    async def close(self) -> None:
        await self._session.close()

    async def check_health(self) -> None:
        """Raises VllmConnectionLost unless the server reports that it is healthy."""
        try:
            await self._ask("GET", "/health", seconds=_ANSWER_SECONDS)
        except VllmRefused as error:
            raise VllmConnectionLost(str(error), was_sent=True) from error

    async def offer(self) -> Offer:
        answer = await self._ask("GET", "/v1/models", seconds=_ANSWER_SECONDS)
        try:
            cards = orjson.loads(answer)["data"]
            return Offer(
                models={card["id"]: int(card["max_model_len"]) for card in cards if card.get("parent") is None},
                adapters={card["id"]: str(card.get("root")) for card in cards if card.get("parent") is not None},
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise VllmRefused(f"{self.url} does not list models as vLLM does", status=200) from error

    async def takes_adapters(self) -> bool:
        """Whether the server has the routes to load adapters, which are off by default."""
        try:
            await self._ask("POST", "/v1/load_lora_adapter", {}, seconds=_ANSWER_SECONDS)
        except VllmRefused as error:
            return error.status != UNKNOWN
        return True

    async def load_adapter(self, name: str, directory: str) -> None:
        """Load an adapter; it is loaded on return. It may be loaded already: names are unique."""
        body = {"lora_name": name, "lora_path": directory}
        try:
            await self._ask("POST", "/v1/load_lora_adapter", body, seconds=_LOAD_SECONDS, refuses_by_500=True)
        except VllmRefused as error:
            if "already been loaded" not in str(error):
                raise

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded."""
        try:
            await self._ask(
                "POST", "/v1/unload_lora_adapter", {"lora_name": name}, seconds=_ANSWER_SECONDS, refuses_by_500=True
            )
        except VllmRefused as error:
            if error.status != UNKNOWN:
                raise

    async def complete(self, body: dict[str, Any]) -> Any:  # Any: plain JSON, both
        """Send a completion request, without a time limit. Cancelling the call aborts it on the server."""
        answer = await self._ask("POST", "/v1/completions", body)
        try:
            if len(answer) < _LARGE_BYTES:
                return orjson.loads(answer)
            return await asyncio.to_thread(orjson.loads, answer)
        except orjson.JSONDecodeError as error:
            raise VllmRefused(f"{self.url} answered with what is no JSON: {error}", status=200) from error

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        seconds: float | None = None,
        refuses_by_500: bool = False,
    ) -> bytes:
        """``refuses_by_500``: the route answers 500 to invalid requests, and the server stays healthy."""
        content = None if body is None else orjson.dumps(body)
        headers = None if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(method, self.url + path, data=content, headers=headers) as response,
            ):
                answer = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise VllmConnectionLost(f"{self.url} cannot be reached: {error}", was_sent=False) from error
        except TimeoutError as error:
            raise VllmConnectionLost(
                f"{self.url} did not answer {path} within {seconds} seconds", was_sent=True
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            told = str(error) or type(error).__name__
            raise VllmConnectionLost(f"the connection to {self.url} broke: {told}", was_sent=True) from error
        if response.status < 400:
            return answer
        message = f"{self.url} answered {path} with {response.status}: {_explain(answer)}"
        if response.status >= 500 and not refuses_by_500:
            raise VllmConnectionLost(message, was_sent=True)
        if response.status in _LATER:
            raise VllmConnectionLost(message, was_sent=False)
        if response.status in (401, 403):
            message += f". If it wants a key, start this server with it in {KEY}"
        raise VllmRefused(message, status=response.status)


def _explain(answer: bytes) -> str:
    """The error message of vLLM or of a proxy before it."""
    try:
        told = orjson.loads(answer)
        inner = told.get("error", told)
        text = str(inner.get("message") or inner.get("detail") or inner)
    except (orjson.JSONDecodeError, AttributeError):
        text = answer.decode(errors="replace").strip()
    return text[:_TOLD] or "nothing"
