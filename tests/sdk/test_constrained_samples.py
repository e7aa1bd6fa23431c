"""Samples with a constraint over HTTP: their text matches the schema, also of one that a killed server had taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import tinker
from tokenizers import Tokenizer

from sdk.making import MODEL
from support.live import LiveServer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Eiger", "Mönch"]},
        "pitches": {"type": "array", "items": {"type": "boolean"}, "minItems": 40, "maxItems": 40},
    },
    "required": ["name", "pitches"],
    "additionalProperties": False,
}


def ask(http: httpx.Client, constraint: dict[str, Any], *, samples: int = 4, seed: int | None = 3) -> str:
    body = {
        "base_model": MODEL,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "num_samples": samples,
        "sampling_params": {"max_tokens": 1200, "temperature": 1.0, "seed": seed},
        "constraint": constraint,
    }
    answer = http.post("asample", json=body)
    assert answer.status_code == 200, answer.text
    request_id = answer.json()["request_id"]
    assert isinstance(request_id, str)
    return request_id


def result(http: httpx.Client, request_id: str) -> Any:
    while "sequences" not in (found := http.post("retrieve_future", json={"request_id": request_id}).json()):
        assert found.get("type") == "try_again", found
    return found["sequences"]


def test_the_texts_match_the_schema(live: LiveServer, service: tinker.ServiceClient, models: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(models[MODEL] / "tokenizer.json"))
    constraint = {"json_schema": SCHEMA, "prefix": "Answer: ", "suffix": "."}

    with live.http() as http:
        sequences = result(http, ask(http, constraint))

    for sequence in sequences:
        text = tokenizer.decode(sequence["tokens"])
        assert sequence["stop_reason"] == "stop"
        assert text.startswith("Answer: ") and text.endswith(".")
        answer = json.loads(text.removeprefix("Answer: ").removesuffix("."))
        assert answer["name"] in ("Eiger", "Mönch") and len(answer["pitches"]) == 40


def test_what_is_wrong_is_a_400_or_a_failure_of_the_user(live: LiveServer, service: tinker.ServiceClient) -> None:
    with live.http() as http:
        refused = http.post("asample", json={"base_model": MODEL, "constraint": {"json_schema": []}})
        failed = http.post(
            "retrieve_future", json={"request_id": ask(http, {"json_schema": {"not": {"type": "null"}}})}
        ).json()

    assert refused.status_code == 400 and "json_schema must be an object" in refused.text
    assert failed["category"] == "user" and "cannot be used as a constraint" in failed["error"]


def test_a_killed_server_does_not_lose_the_constraint(start_server: Callable[..., LiveServer]) -> None:
    server = start_server()
    with server.http() as http:
        whole = result(http, ask(http, {"json_schema": SCHEMA}, samples=16))
        request_id = ask(http, {"json_schema": SCHEMA}, samples=16)
    server.kill()
    server.start()

    with server.http() as http:
        again = result(http, request_id)

    assert [one["tokens"] for one in again] == [one["tokens"] for one in whole]
