"""Answers of the API of OpenAI, read without its SDK."""

from __future__ import annotations

import json
from typing import Any

import httpx

Json = dict[str, Any]


def answer_of(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def refusal_of(answer: httpx.Response, code: int = 400) -> Json:
    """The error; fails unless it has this status and OpenAI's shape."""
    assert answer.status_code == code, f"{answer.status_code}: {answer.text[:500]}"
    error: Json = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def chunks_of(answer: httpx.Response) -> list[Json]:
    """The data of a stream, which must have been sent to its end."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def events_of(answer: httpx.Response) -> list[Json]:
    """The events of a response, whose numbers must have no gap."""
    assert answer.status_code == 200, answer.text
    found: list[Json] = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event: Json = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found
