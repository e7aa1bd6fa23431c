from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import HTTPException
from starlette.types import Message

from chockstone.api.admission.limits import UploadLimits
from chockstone.api.admission.uploads import HeldBytes, RequestUpload, Uploads

LIMITS = UploadLimits(body_bytes=1 << 20, json_bytes=1 << 10, silence_seconds=60.0, bytes_per_second=4096)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0.0

    def time(self) -> float:
        return super().time() + getattr(self, "_skipped", 0.0)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]  # asyncio's own
        waiting = [timer.when() for timer in scheduled if not timer.cancelled()]  # the others are not waited for
        if not ready and waiting:
            self._skipped += max(0.0, min(waiting) - self.time())
        super()._run_once()  # type: ignore[misc]  # asyncio's own


def upload_of(pieces: Iterable[tuple[float, int]], limits: UploadLimits = LIMITS) -> int:
    """Bytes received of a body whose pieces come at intervals of so many seconds.

    Raises as ``RequestUpload.receive`` does.
    """
    given = iter(pieces)

    async def receive() -> Message:
        seconds, size = next(given, (0.0, 0))
        await asyncio.sleep(seconds)
        return {"type": "http.request", "body": bytes(size), "more_body": size > 0}

    async def read() -> int:
        held = HeldBytes(1 << 30, always_bytes=1 << 10)
        upload = RequestUpload(receive, held, limits, caller="ann", limit_bytes=limits.body_bytes)
        try:
            while (await upload.receive())["more_body"]:
                pass
            return held.total
        finally:
            upload.close()
            assert held.total == 0

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(read())


def test_an_upload_on_a_slow_line_is_read_to_its_end() -> None:
    assert upload_of([(1.0, 5000)] * 200) == 1_000_000


def test_a_line_that_is_silent_for_less_than_a_minute_may_go_on() -> None:
    assert upload_of([(1.0, 500_000), (59.0, 1000), (59.0, 1000)]) == 502_000


@pytest.mark.parametrize(
    "pieces",
    [
        [(61.0, 100)],  # nothing came
        [(1.0, 500_000), (61.0, 100)],  # much came, then nothing
        [(1.0, 1)] * 70,  # a byte a second
        [(30.0, 50_000)] * 20,  # half of the rate
    ],
)
def test_an_upload_that_is_too_slow_is_given_up(pieces: list[tuple[float, int]]) -> None:
    with pytest.raises(HTTPException) as caught:
        upload_of(pieces)

    assert caught.value.status_code == 408


def test_a_body_that_grows_too_large_is_refused_while_it_is_read() -> None:
    with pytest.raises(HTTPException) as caught:
        upload_of([(0.0, 1 << 19)] * 3)

    assert caught.value.status_code == 413


@pytest.mark.parametrize(
    ("path", "caller", "limit"),
    [
        ("/api/v1/forward_backward", "ann", 1 << 20),
        ("/api/v1/optim_step", "ann", 1 << 10),
        ("/api/v1/policies/forward", "ann", 1 << 10),  # a name that ends like a route of tensors
        ("/metrics", None, 64 << 10),
    ],
)
def test_a_body_that_says_it_is_too_large_is_not_read(path: str, caller: str | None, limit: int) -> None:
    async def never() -> Message:
        raise AssertionError("it was read")

    def scope(size: int) -> dict[str, Any]:
        return {"path": path, "headers": [(b"content-length", str(size).encode())]}

    uploads = Uploads(LIMITS)

    uploads.begin(scope(limit), never, caller=caller)
    with pytest.raises(HTTPException) as caught:
        uploads.begin(scope(limit + 1), never, caller=caller)
    assert caught.value.status_code == 413


def test_who_holds_more_than_a_share_is_refused_and_nobody_else() -> None:
    held = HeldBytes(1000, always_bytes=10)
    held.add("ann", 1000)
    assert not held.is_too_much("ann"), "alone, she has all of it"

    held.add("bob", 300)
    assert held.is_too_much("ann")
    assert not held.is_too_much("bob")

    held.add("bob", 300)
    assert held.is_too_much("bob")

    held.remove("ann", 1000)
    assert not held.is_too_much("bob")


def test_a_little_is_always_taken() -> None:
    held = HeldBytes(1000, always_bytes=10)
    for number in range(500):
        held.add(f"user-{number}", 10)

    assert not any(held.is_too_much(f"user-{number}") for number in range(500))


async def test_a_streamed_body_is_not_counted_as_held_and_has_the_limit_of_its_route() -> None:
    uploads = Uploads(LIMITS)

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(LIMITS.body_bytes), "more_body": True}

    scope = {"path": "/api/v1/uploads/token/file", "headers": [(b"content-length", b"99999999999")]}
    upload = uploads.begin(scope, receive, caller=None)
    for _ in range(8):
        await upload.receive()

    assert uploads.held.total == 0
    upload.close()
