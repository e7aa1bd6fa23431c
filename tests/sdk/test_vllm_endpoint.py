"""The endpoint of OpenAI on a server that samples by vLLM: a stub on loopback, which answers tokens of numbers.

What vLLM cannot give exactly, the worker answers; ``make vllm`` has real vLLM servers.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from openai import OpenAI

from sdk.making import create
from sdk.test_openai import CITIES, MESSAGES, TOOL
from support.live import LiveServer
from support.vllm.stub import Stub, logprobs_after

MODEL = "tiny-qwen3"


@pytest.fixture(scope="module")
def vllm() -> Iterator[Stub]:
    """In a thread of its own: the live server asks it while the tests wait."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stub = Stub(models=(MODEL,), context=600, is_tempered=True)
    asyncio.run_coroutine_threadsafe(stub.start(), loop).result(30)
    yield stub
    asyncio.run_coroutine_threadsafe(stub.die(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def server(vllm: Stub, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("vllm")
    options = ("--sampler=vllm", f"--vllm-url={vllm.url}", "--sampler-gap-limit=off")  # no probes among its requests
    with LiveServer({MODEL: models[MODEL]}, home, *options) as live:
        yield live


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: OpenAI, **more: Any) -> Any:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "seed": 1, **more}
    return client.chat.completions.create(**asked)


def test_answers_are_those_of_vllm_with_its_logprobs(client: OpenAI, vllm: Stub) -> None:
    before = len(vllm.requests)
    whole = ask(client, n=2, temperature=0.5, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
    response = client.responses.create(model=MODEL, input="Hi", max_output_tokens=5)
    completion = client.completions.create(model=MODEL, prompt=[5, 6], max_tokens=4)

    assert [len(each["prompt"]) for each in vllm.requests[before:]] == [whole.usage.prompt_tokens, 16, 2]
    assert response.output_text
    assert completion.choices[0].text
    for choice in whole.choices:
        last = whole.prompt_token_ids[-1]
        for token, told in zip(choice.token_ids, choice.logprobs.content, strict=True):
            expected = logprobs_after(last, temperature=0.5)[token]
            assert told.logprob == pytest.approx(expected, abs=1e-4)
            assert len(told.top_logprobs) == 2
            last = token


def test_a_stream_is_one_piece(client: OpenAI) -> None:
    chunks = [choice for chunk in ask(client, stream=True) for choice in chunk.choices]

    assert [chunk.finish_reason for chunk in chunks] == [None, "length"]
    assert chunks[0].delta.content == ask(client).choices[0].message.content


def test_a_checkpoint_is_an_adapter(client: OpenAI, server: LiveServer, vllm: Stub) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    path = create(service, train_unembed=False).save_weights_for_sampler("a").result().path

    assert ask(client, model=path).choices
    assert vllm.requests[-1]["model"].startswith("chockstone-")
    service.close("success").result()


def test_the_worker_answers_what_must_match_a_schema(client: OpenAI, vllm: Stub) -> None:
    strict: Any = {"type": "function", "function": {**TOOL["function"], "parameters": CITIES, "strict": True}}
    before = len(vllm.requests)
    written = ask(
        client, max_tokens=200, response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": CITIES}}
    )
    called = ask(client, max_tokens=200, tools=[strict], tool_choice="required")
    ask(client, tools=[strict])
    assert len(vllm.requests) == before

    ask(client, tools=[TOOL])
    assert len(vllm.requests) == before + 1

    assert json.loads(written.choices[0].message.content)["city"] in CITIES["properties"]["city"]["enum"]
    [call] = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES["properties"]["city"]["enum"]
