from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from support.api.users import MODEL
from support.chat import tokens_of, written
from support.openai_answers import answer_of, chunks_of, refusal_of
from support.served import Served


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once", **more}


async def test_the_answer_is_a_completion(served: Served, http: httpx.AsyncClient, models: dict[str, Path]) -> None:
    served.backend.sequences = written(models[MODEL], " upon a time")
    answer = answer_of(await http.post("completions", json=body(logprobs=0)))

    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" upon a time", "stop")
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == " upon a time"
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    assert logprobs["token_logprobs"] == [-place / 4 for place in range(len(logprobs["tokens"]))]


async def test_a_stream_adds_up_to_the_answer(served: Served, http: httpx.AsyncClient, models: dict[str, Path]) -> None:
    served.backend.sequences = written(models[MODEL], " upon a time")
    asked = body(stream=True, stream_options={"include_usage": True}, return_token_ids=True)
    *chunks, last = chunks_of(await http.post("completions", json=asked))

    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " upon a time"
    tokens = tokens_of(models[MODEL], " upon a time")
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == tokens
    assert last["usage"]["completion_tokens"] == len(tokens)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"


@pytest.mark.parametrize("prompts", [["a", "b", "c"], [[5], [6], [7]]])
async def test_each_prompt_gets_its_choices(served: Served, http: httpx.AsyncClient, prompts: Any) -> None:
    answer = answer_of(await http.post("completions", json=body(prompt=prompts, n=2)))

    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["completion_tokens"] == 18
    assert len([call for call, _, _ in served.backend.calls if call == "sample"]) == 3


async def test_tokens_are_a_prompt_as_they_are(served: Served, http: httpx.AsyncClient) -> None:
    answer = answer_of(await http.post("completions", json=body(prompt=[7, 8, 9], return_token_ids=True)))

    assert answer["choices"][0]["prompt_token_ids"] == [7, 8, 9]
    sent = orjson.loads([told for call, _, told in served.backend.calls if call == "sample"][-1])
    assert sent["prompt"]["chunks"][0]["tokens"] == [7, 8, 9]
    assert sent["sampling_params"]["max_tokens"] == 16


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 100}, "n"),
        ({"prompt": ["a", "b"], "stream": True}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {}}, "response_format"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(http: httpx.AsyncClient, wrong: dict[str, Any], param: str) -> None:
    assert refusal_of(await http.post("completions", json=body(**wrong)))["param"] == param


async def test_what_the_worker_refuses_is_no_server_error(http: httpx.AsyncClient, served: Served) -> None:
    refusal_of(await http.post("completions", json=body(prompt=[1] * 5000)))
