"""Requests with ``store``: whole answers, streams, completions and responses are kept under the id that clients got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.engine.config import StorageRules
from support.api.users import MODEL, User
from support.chat import tokens_of, written
from support.openai_answers import answer_of, chunks_of, events_of, refusal_of
from support.served import Served

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "store": True, "metadata": {"team": "a"}}


@pytest.fixture
def rules() -> StorageRules:
    return StorageRules(reserve_bytes=0, conversation_quota_bytes=3 * 4096)


async def test_every_kind_of_answer_is_kept_under_its_id(
    served: Served, http: httpx.AsyncClient, ann: User, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    plain = {"model": MODEL, "prompt": "Hi", "store": True}
    whole = answer_of(await http.post("chat/completions", json=CHAT))
    chunks = chunks_of(await http.post("chat/completions", json={**CHAT, "stream": True}))
    completion = answer_of(await http.post("completions", json=plain))

    for answer_id, api in (
        (whole["id"], "chat.completions"),
        (chunks[0]["id"], "chat.completions"),
        (completion["id"], "completions"),
    ):
        found = (await ann.http.get(f"conversations/{answer_id}")).json()
        assert found["api"] == api
        assert found["answers"][0]["tokens"] == tokens_of(models[MODEL], "Hello.")
    kept = (await ann.http.get(f"conversations/{whole['id']}")).json()
    assert (kept["messages"], kept["metadata"]) == (MESSAGES, {"team": "a"})
    assert kept["answers"][0]["message"] == whole["choices"][0]["message"]


async def test_a_response_is_kept_under_its_id(
    served: Served, http: httpx.AsyncClient, ann: User, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    body = {"model": MODEL, "input": "Hi", "store": True, "stream": True}
    *_, last = events_of(await http.post("responses", json=body))

    assert last["response"]["store"] is True
    kept = (await ann.http.get(f"conversations/{last['response']['id']}")).json()
    assert kept["answers"][0]["message"] == {"role": "assistant", "content": "Hello."}


async def test_a_text_correction_is_encoded_by_the_model_and_exported(
    served: Served, http: httpx.AsyncClient, ann: User, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "It is 5.<|eot_id|>")
    answer = answer_of(await http.post("chat/completions", json=CHAT))

    changed = await ann.http.put(f"conversations/{answer['id']}/correction", json={"text": "It is 4."})

    assert changed.status_code == 200, changed.text
    kept = (await ann.http.get(f"conversations/{answer['id']}")).json()
    correction = kept["answers"][0]["correction"]
    assert correction == {"tokens": tokens_of(models[MODEL], "It is 4.<|eot_id|>"), "text": "It is 4."}


async def test_a_full_quota_refuses_before_anything_is_sampled(
    served: Served, http: httpx.AsyncClient, context: Context, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    for _ in range(3):
        answer_of(await http.post("chat/completions", json=CHAT))
    samples = len([word for word, _, _ in served.backend.calls if word == "sample"])

    error = refusal_of(await http.post("chat/completions", json={**CHAT, "stream": True}))

    assert "delete some with `chockstone conversations rm`" in error["message"]
    assert len([word for word, _, _ in served.backend.calls if word == "sample"]) == samples
    answer_of(await http.post("chat/completions", json={**CHAT, "store": False}))
    assert (await context.engine.conversations.use("ann")).count == 3


async def test_requests_that_do_not_ask_are_not_kept(
    served: Served, http: httpx.AsyncClient, context: Context, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    answer_of(await http.post("chat/completions", json={"model": MODEL, "messages": MESSAGES}))
    answer_of(await http.post("completions", json={"model": MODEL, "prompt": ["Hi", "Ho"]}))

    assert (await context.engine.conversations.use("ann")).count == 0
    refused = refusal_of(await http.post("completions", json={"model": MODEL, "prompt": ["Hi", "Ho"], "store": True}))
    assert refused["param"] == "store"
    refusal_of(await http.post("chat/completions", json={**CHAT, "store": "yes"}))
