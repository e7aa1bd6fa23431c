"""Uploads: reads request bodies within limits of size, of time, and of the bytes that one caller has in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from fastapi import HTTPException
from starlette.types import Message, Receive, Scope

from chockstone.api.admission.limits import UploadLimits

UPLOAD: Final = "upload"  # in the scope's state
STREAMED_ROUTES: Final = "/api/v1/uploads/"  # they limit their bodies themselves, and write them to disk as they come
_UNLIMITED: Final = 1 << 62
_LARGE_ROUTES: Final = frozenset({"/api/v1/forward_backward", "/api/v1/forward", "/api/v1/asample"})


class HeldBytes:
    """Bytes of unanswered requests, by caller.

    When all callers together hold more than the limit, callers above their share of it are refused.
    """

    def __init__(self, limit_bytes: int, *, always_bytes: int) -> None:
        self._limit = limit_bytes
        self._always = always_bytes  # any caller may hold these
        self._by_caller: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def add(self, caller: str, size: int) -> None:
        self._by_caller[caller] += size
        self._total += size

    def remove(self, caller: str, size: int) -> None:
        self._total -= size
        self._by_caller[caller] -= size
        if self._by_caller[caller] == 0:
            del self._by_caller[caller]

    def is_too_much(self, caller: str) -> bool:
        if self._total <= self._limit:
            return False
        return self._by_caller[caller] > max(self._limit // len(self._by_caller), self._always)


class Uploads:
    def __init__(self, limits: UploadLimits) -> None:
        self._limits = limits
        self.held = HeldBytes(
            limits.at_once * limits.body_bytes, always_bytes=min(limits.json_bytes, limits.body_bytes)
        )

    def begin(self, scope: Scope, receive: Receive, *, caller: str | None) -> RequestUpload:
        """Raises HTTPException 413 if Content-Length is too large. ``caller`` None: the request has no key."""
        if scope["path"].startswith(STREAMED_ROUTES):
            return RequestUpload(receive, None, self._limits, caller="", limit_bytes=_UNLIMITED)
        if caller is None:
            limit = min(self._limits.public_bytes, self._limits.body_bytes)
        elif scope["path"] in _LARGE_ROUTES:
            limit = self._limits.body_bytes
        else:
            limit = min(self._limits.json_bytes, self._limits.body_bytes)
        upload = RequestUpload(receive, self.held, self._limits, caller=caller or "", limit_bytes=limit)
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(declared) > limit:  # the parser has checked that it has only digits
            raise upload.too_large()
        return upload


class RequestUpload:
    """The body of one request. Close it when the request is answered."""

    def __init__(
        self, receive: Receive, held: HeldBytes | None, limits: UploadLimits, *, caller: str, limit_bytes: int
    ) -> None:
        """``held`` None: the body is not kept in memory."""
        self._receive = receive
        self._held = held
        self._limits = limits
        self._caller = caller
        self._limit = limit_bytes
        self._received = 0
        self._held_bytes = 0
        self._waited_seconds = 0.0
        self._is_whole = False

    async def receive(self) -> Message:
        """ASGI's receive. Raises HTTPException 408 for a slow body, 413 for a large one, 429 for too many at once."""
        message = await (self._receive() if self._is_whole else self._receive_in_time())
        if message["type"] != "http.request":
            return message
        self._is_whole = not message.get("more_body", False)
        size = len(message.get("body", b""))
        self._received += size
        if self._received > self._limit:
            raise self.too_large()
        self.hold(size)
        return message

    def hold(self, size: int) -> None:
        """Count bytes as in memory until ``close``. Raises HTTPException 429 when the caller holds too many."""
        if self._held is None:
            return
        self._held_bytes += size
        self._held.add(self._caller, size)
        if self._held.is_too_much(self._caller):
            raise HTTPException(
                429, "too many request bodies of yours arrive at once; send it again", {"Retry-After": "1"}
            )

    async def _receive_in_time(self) -> Message:
        loop = asyncio.get_running_loop()
        began = loop.time()
        silence = self._limits.silence_seconds
        budget = silence + self._received / self._limits.bytes_per_second - self._waited_seconds
        try:
            async with asyncio.timeout(min(silence, budget)):
                return await self._receive()
        except TimeoutError:
            detail = f"the body came too slowly: {self._received} bytes, then nothing more in time; send it again"
            raise HTTPException(408, detail) from None
        finally:
            self._waited_seconds += loop.time() - began

    def too_large(self) -> HTTPException:
        return HTTPException(413, f"the request body is larger than {self._limit} bytes; send less at a time")

    def close(self) -> None:
        if self._held is not None:
            self._held.remove(self._caller, self._held_bytes)
        self._held_bytes = 0
