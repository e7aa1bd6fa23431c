"""Requests with ``store``: whole answers, streams, completions and responses are kept under the id that clients got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.chat.storing import plain_message
from chockstone.api.context import Context
from chockstone.api.openai.responses import responses
from chockstone.engine.config import StorageRules
from support.api.users import KEYS, MODEL, User
from support.chat import CALL, WEATHER, tokens_of, written
from support.openai_answers import answer_of, chunks_of, events_of, refusal_of
from support.served import Served

MESSAGES = [{"role": "user", "content": "Hi"}]
LOGPROBS = "message.output_text.logprobs"
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
    message = kept["answers"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "Hello.")


async def test_stored_answers_are_shown_as_they_were_given_until_they_are_deleted(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], f"Let me see.{CALL}", "Hello.")
    chat = answer_of(await http.post("chat/completions", json={**CHAT, "model": "helper", "tools": [WEATHER], "n": 2}))
    function = WEATHER["function"]
    assert isinstance(function, dict)
    served.backend.sequences = written(models["helper"], f"Let me see.{CALL}")
    asked = {"model": "helper", "input": "Hi", "instructions": "Be brief.", "store": True, "include": [LOGPROBS]}
    tools = [{"type": "function", **function}]
    response = answer_of(await http.post("responses", json={**asked, "tools": tools, "max_output_tokens": 900}))

    shown = answer_of(await http.get(f"chat/completions/{chat['id']}"))
    assert shown.pop("metadata") == {"team": "a"}
    del chat["usage"]["prompt_tokens_details"]  # what came from a cache is not stored
    assert shown == chat
    again = answer_of(await http.get(f"responses/{response['id']}"))
    message, call = response["output"]
    assert message["content"][0].pop("logprobs")
    assert again["output"][0]["content"][0].pop("logprobs") == []
    assert call["type"] == "function_call"
    assert again == response

    for path, kind in (("chat/completions", "chat.completion.deleted"), ("responses", "response")):
        answer_id = chat["id"] if path == "chat/completions" else response["id"]
        gone = answer_of(await http.delete(f"{path}/{answer_id}"))
        assert gone == {"id": answer_id, "object": kind, "deleted": True}
        assert refusal_of(await http.get(f"{path}/{answer_id}"), 404)["code"] == "not_found"
        refusal_of(await http.delete(f"{path}/{answer_id}"), 404)


async def test_a_response_that_was_stored_without_itself_is_rebuilt(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        responses, "stored_message", lambda _head, _request, generation, number: plain_message(generation, number)
    )
    function = WEATHER["function"]
    assert isinstance(function, dict)
    tools = [{"type": "function", **function}]
    asked = {"model": "helper", "input": "Hi", "store": True, "tools": tools, "max_output_tokens": 900}
    for text in (f"Let me see.{CALL}", CALL, "Hello."):
        served.backend.sequences = written(models["helper"], text)
        answer = answer_of(await http.post("responses", json={**asked, "metadata": {"a": "b"}}))

        shown = answer_of(await http.get(f"responses/{answer['id']}"))

        assert shown.pop("completed_at") and answer.pop("completed_at")
        assert shown == answer


async def test_stored_answers_are_those_of_their_user_and_their_api(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    chat = answer_of(await http.post("chat/completions", json=CHAT))["id"]
    ours = {"Authorization": f"Bearer {KEYS['ann']}"}
    bobs = {"Authorization": f"Bearer {KEYS['bob']}"}

    for method in ("GET", "DELETE"):
        refusal_of(await http.request(method, f"chat/completions/{chat}", headers=bobs), 404)
        refusal_of(await http.request(method, f"responses/{chat}", headers=ours), 404)
        for wrong in ("chatcmpl-x", "chatcmpl-..%2f..", "x" * 100):
            refusal_of(await http.request(method, f"chat/completions/{wrong}", headers=ours), 404)
        refusal_of(await http.request(method, f"responses/{'x' * 101}", headers=ours))
    assert refusal_of(await http.get(f"responses/{chat}?stream=true"))["param"] == "stream"
    for path in ("responses", "chat/completions"):
        for query, param in (
            ("include[]=x", "include"),
            ("starting_after=3", "starting_after"),
            ("a" * 500, "a" * 100),
        ):
            assert refusal_of(await http.get(f"{path}/{chat}?{query}", headers=ours))["param"] == param
    answer_of(await http.get(f"chat/completions/{chat}", headers=ours))


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
