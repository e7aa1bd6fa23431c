from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import zstandard

from chockstone.api.chat import request_body
from chockstone.api.chat.request_body import MAX_BYTES, MAX_KEYS, MAX_VALUES
from chockstone.api.openai.chat import chat_completions
from chockstone.wire.failures import BadRequest
from support.api.users import KEYS
from support.openai_answers import refusal_of
from support.served import Served

PATH = "/v1/chat/completions"


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(served.app)
    headers = {"Authorization": f"Bearer {KEYS['ann']}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as made:
        yield made


async def test_only_a_small_body_is_read_on_the_event_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(_: Any) -> None:
        threads.append(threading.current_thread())
        raise BadRequest("read")

    monkeypatch.setattr(chat_completions, "read_chat_request", read)
    for size in (10, 20_000):
        assert refusal_of(await http.post(PATH, json={"a": "x" * size}))["message"] == "read"

    assert [thread is threading.main_thread() for thread in threads] == [True, False]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": [' + b"1," * MAX_VALUES + b"1, 1]}", f"more than {MAX_VALUES} values"),
        (b'{"a": [' + b'{"b":1},' * MAX_KEYS + b"1]}", f"more than {MAX_KEYS} fields"),
        (b'{"a": [' + b'{"b" :1},' * MAX_KEYS + b"1]}", f"more than {MAX_KEYS} fields"),
        (b'{"a": [' + b'{"b"\r\n\t :1},' * MAX_KEYS + b"1]}", f"more than {MAX_KEYS} fields"),
    ],
)
async def test_more_than_a_conversation_has_is_too_large(http: httpx.AsyncClient, body: bytes, words: str) -> None:
    assert words in refusal_of(await http.post(PATH, content=body), 413)["message"]


async def test_a_body_of_too_many_bytes_is_refused_packed_or_not(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = zstandard.compress(json.dumps({"a": "x" * MAX_BYTES}).encode())

    refused = refusal_of(await http.post(PATH, content=packed, headers={"Content-Encoding": "zstd"}))
    assert f"more than the {MAX_BYTES}" in refused["message"]
    monkeypatch.setattr(request_body, "MAX_BYTES", 5)
    assert "at most 5" in refusal_of(await http.post(PATH, content=b'{"a": 1}'), 413)["message"]
