"""HTTP client of one vLLM server, and its errors.

VllmError
├── VllmConnectionLost   no answer, or a 5xx: another server may succeed
└── VllmRefused          a 4xx: the server does not do this
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

_CONNECT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 2.0  # uvicorn drops idle connections after 5, with a request that is just being sent
_ANSWER_SECONDS: Final = 20.0  # for routes that compute nothing
_LOAD_SECONDS: Final = 300.0  # to load an adapter, perhaps from a slow disk
_LARGE_BYTES: Final = 1 << 18  # of JSON; from here on a thread decodes it
_MAX_ERROR_TEXT: Final = 1000  # characters of an error that are passed on
_RETRY_STATUSES: Final = (408, 429)  # of a proxy in front of a busy server
UNKNOWN: Final = 404  # the status for a model or adapter that is not loaded
KEY: Final = "VLLM_API_KEY"  # the environment variable; vLLM reads it, too


class VllmError(Exception):
    pass


class VllmConnectionLost(VllmError):
    """``was_sent``: the server had received the request and may have crashed on it."""

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
    """For one event loop. Closing it cancels running requests."""

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
        """Raises VllmConnectionLost unless the server says that it is healthy."""
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
        """Whether the server has the adapter routes: it has them only if started with the option."""
        try:
            await self._ask("POST", "/v1/load_lora_adapter", {}, seconds=_ANSWER_SECONDS)
        except VllmRefused as error:
            return error.status != UNKNOWN
        return True

    async def load_adapter(self, name: str, directory: str) -> None:
        """Load an adapter. One of this name that is loaded already is the same: a name is used once."""
        body = {"lora_name": name, "lora_path": directory}
        try:
            await self._ask("POST", "/v1/load_lora_adapter", body, seconds=_LOAD_SECONDS, refuses_by_500=True)
        except VllmRefused as error:
            if not is_loaded_already(error):
                raise

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is ignored."""
        try:
            await self._ask(
                "POST", "/v1/unload_lora_adapter", {"lora_name": name}, seconds=_ANSWER_SECONDS, refuses_by_500=True
            )
        except VllmRefused as error:
            if error.status != UNKNOWN:
                raise

    async def complete(self, body: dict[str, Any]) -> Any:  # Any: plain JSON, both
        """Complete a request, without a time limit. Cancelling the call stops it on the server."""
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
        """``refuses_by_500``: this route answers 500 to what it refuses, and the server stays healthy."""
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
            answered = str(error) or type(error).__name__
            raise VllmConnectionLost(f"the connection to {self.url} broke: {answered}", was_sent=True) from error
        if response.status < 400:
            return answer
        message = f"{self.url} answered {path} with {response.status}: {_explain(answer)}"
        if response.status >= 500 and not refuses_by_500:
            raise VllmConnectionLost(message, was_sent=True)
        if response.status in _RETRY_STATUSES:
            raise VllmConnectionLost(message, was_sent=False)
        if response.status in (401, 403):
            message += f". If it wants a key, start this server with it in {KEY}"
        raise VllmRefused(message, status=response.status)


def _explain(answer: bytes) -> str:
    """The error text of vLLM, or of a proxy in front of it."""
    try:
        answered = orjson.loads(answer)
        inner = answered.get("error", answered)
        text = str(inner.get("message") or inner.get("detail") or inner)
    except (orjson.JSONDecodeError, AttributeError):
        text = answer.decode(errors="replace").strip()
    return text[:_MAX_ERROR_TEXT] or "nothing"


def is_loaded_already(error: VllmRefused) -> bool:
    """vLLM tells this from other refusals to load an adapter only in words."""
    return "already been loaded" in str(error)


def has_no_output_layer(error: VllmRefused) -> bool:
    """vLLM's words when a model has no output layer that an adapter could change."""
    return "expected target modules" in str(error)
