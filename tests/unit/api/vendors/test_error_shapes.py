from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from fastapi import HTTPException
from starlette.types import Message, Receive, Scope, Send

from chockstone.api.vendors.error_shapes import VendorErrors, error_body
from chockstone.api.vendors.paths import Vendor
from chockstone.catalog import RowMissing
from chockstone.engine.config import Busy
from chockstone.wire.failures import BadParameter, BadRequest, ServerFailure
from support.api.users import KEYS
from support.served import Served

FAILURES: list[tuple[Exception, int, str, str]] = [  # the error, its status, OpenAI's type, Anthropic's type
    (BadRequest("x"), 400, "invalid_request_error", "invalid_request_error"),
    (BadParameter("x", param="n"), 400, "invalid_request_error", "invalid_request_error"),
    (HTTPException(403, "x"), 403, "permission_error", "permission_error"),
    (RowMissing("x"), 404, "invalid_request_error", "not_found_error"),
    (HTTPException(413, "x"), 413, "invalid_request_error", "request_too_large"),
    (HTTPException(415, "x"), 415, "invalid_request_error", "invalid_request_error"),
    (HTTPException(422, "x"), 400, "invalid_request_error", "invalid_request_error"),
    (Busy("x"), 429, "rate_limit_error", "rate_limit_error"),
    (RuntimeError("secret"), 500, "server_error", "api_error"),
    (ServerFailure("x"), 503, "server_error", "api_error"),
]


def client_of(app: Any, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.mark.parametrize(("failure", "status", "openai", "anthropic"), FAILURES)
async def test_each_failure_of_a_route_has_the_vendors_shape(
    served: Served, failure: Exception, status: int, openai: str, anthropic: str
) -> None:
    async def fail() -> None:
        raise failure

    for prefix in ("/v1", "/anthropic/v1", "/api/v1"):
        served.app.add_api_route(f"{prefix}/fails", fail)
    async with client_of(served.app, **{"X-API-Key": KEYS["ann"]}) as ann:
        of_openai, of_anthropic = await ann.get("/v1/fails"), await ann.get("/anthropic/v1/fails")
        ours = await ann.get("/api/v1/fails")

    message = "x" if status != 500 else "the server failed on this request; its log says why"
    assert (of_openai.status_code, of_anthropic.status_code) == (status, status)
    assert "detail" in ours.json()
    assert set(of_openai.json()) == {"error"}
    assert set(of_openai.json()["error"]) == {"message", "type", "param", "code"}
    assert (of_openai.json()["error"]["message"], of_openai.json()["error"]["type"]) == (message, openai)
    assert of_openai.json()["error"]["param"] == getattr(failure, "param", None)
    assert of_anthropic.json()["type"] == "error"
    assert of_anthropic.json()["error"] == {"type": anthropic, "message": message}
    assert of_anthropic.json()["request_id"] == (None if status == 500 else of_anthropic.headers["x-request-id"])
    if status in (429, 503):
        assert of_openai.headers["retry-after"] == of_anthropic.headers["retry-after"] == ours.headers["retry-after"]


@pytest.mark.parametrize(
    ("prefix", "vendor"), [("/oai/api/v1", Vendor.OPENAI), ("/anthropic/api/v1", Vendor.ANTHROPIC)]
)
async def test_what_never_reaches_a_route_has_the_vendors_shape(served: Served, prefix: str, vendor: Vendor) -> None:
    async with client_of(served.app) as http:
        without = await http.get(f"{prefix}/x")
        unknown = await http.get(f"{prefix}/x", headers={"Authorization": "Bearer tml-x"})
        http.headers["Authorization"] = f"Bearer {KEYS['ann']}"
        nowhere = await http.post(f"{prefix}/x", headers={"X-Request-ID": "r-1"})
        large = await http.post(f"{prefix}/x", content=b"x", headers={"Content-Length": "99999999"})

    answers = (without, unknown, nowhere, large)
    assert [each.status_code for each in answers] == [401, 401, 404, 413]
    for answer in answers:
        request_id = answer.headers["x-request-id"]
        assert answer.json().keys() == error_body(vendor, 400, "").keys()
        assert answer.json().get("request_id") == (request_id if vendor is Vendor.ANTHROPIC else None)
        assert answer.headers.get("request-id") == (request_id if vendor is Vendor.ANTHROPIC else None)
        assert answer.headers["content-length"] == str(len(answer.content))
    assert "give the client a key of this server" in without.json()["error"]["message"]
    assert nowhere.headers["request-id" if vendor is Vendor.ANTHROPIC else "x-request-id"] == "r-1"


async def test_failed_requests_are_logged_with_their_reason(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise BadParameter("logit_bias is not supported here", param="logit_bias")

    served.app.add_api_route("/v1/fails", fail)
    async with client_of(served.app, Authorization=f"Bearer {KEYS['ann']}") as ann:
        await ann.get("/v1/fails")

    assert "route='GET /v1/fails' status=400 owner=ann" in caplog.text
    assert "reason='logit_bias is not supported here'" in caplog.text


async def test_too_many_bodies_at_once_are_told_when_to_come_back(served: Served, uploads_hold: None) -> None:
    async def read(body: dict[str, Any]) -> dict[str, Any]:
        return body

    served.app.add_api_route("/v1/reads", read, methods=["POST"])
    async with client_of(served.app, Authorization=f"Bearer {KEYS['ann']}") as ann:
        answer = await ann.post("/v1/reads", json={})

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.fixture
def uploads_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.api.admission.uploads.HeldBytes.is_too_much", lambda *_: True)


async def sent_through(path: str, messages: list[Message]) -> list[Message]:
    sent: list[Message] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    await VendorErrors(app)({"type": "http", "path": path}, receive, send)
    return sent


def answer_of(status: int, *pieces: bytes, kind: bytes = b"application/json") -> list[Message]:
    start: Message = {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}
    last = len(pieces) - 1
    return [start] + [
        {"type": "http.response.body", "body": piece, "more_body": number < last} for number, piece in enumerate(pieces)
    ]


async def test_an_error_in_several_pieces_is_rewritten_as_a_whole() -> None:
    start, body = await sent_through("/v1/x", answer_of(503, b'{"det', b'ail": "a', b'way"}'))

    assert start["status"] == 503
    assert orjson.loads(body["body"])["error"]["message"] == "away"


@pytest.mark.parametrize(
    "messages",
    [
        answer_of(200, b'{"detail": "fine"}'),
        answer_of(404, b'{"error": {"message": "the engine has answered"}}'),
        answer_of(400, b"[1]"),
        answer_of(400, b"not json"),
        answer_of(400, b""),
        answer_of(502, b"<html>", kind=b"text/html"),
        answer_of(200, b"data: 1\n\n", b"data: 2\n\n", kind=b"text/event-stream"),
    ],
)
async def test_everything_else_passes(messages: list[Message]) -> None:
    sent = await sent_through("/v1/x", messages)

    assert sent[0]["status"] == messages[0]["status"]
    assert b"".join(each["body"] for each in sent[1:]) == b"".join(each["body"] for each in messages[1:])


async def test_a_large_error_passes_and_is_not_kept_in_memory() -> None:
    pieces = [b'{"detail": "', b"x" * 300_000, b"y" * 300_000, b'"}']

    sent = await sent_through("/v1/x", answer_of(400, *pieces))

    assert [len(each["body"]) for each in sent[1:]] == [300_012, 300_000, 2]
    assert b"".join(each["body"] for each in sent[1:]) == b"".join(pieces)


async def test_no_answer_is_made_up_when_the_app_fails_in_its_answer() -> None:
    sent: list[Message] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(answer_of(500, b"")[0])
        raise RuntimeError("in the middle")

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(RuntimeError):
        await VendorErrors(app)({"type": "http", "path": "/v1/x"}, None, send)  # type: ignore[arg-type]  # reads nothing

    assert sent == []
