"""Anthropic's SDK, unmodified, against a live server and a replica of it: the text that the Tinker SDK samples, too."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
import tinker
from tinker import types
from tokenizers import Tokenizer

from support.api_replicas import LiveReplica
from support.live import LiveServer

KEYS = {"ann": "tml-of-ann", "bob": "tml-of-bob"}
MODEL = "tiny-qwen3"
PROMPT = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
ASK: Any = {"max_tokens": 12, "system": "Be short.", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def server(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = [f"--key={user}={key}" for user, key in KEYS.items()]
    with LiveServer(models, tmp_path_factory.mktemp("anthropic"), *flags, key=KEYS["ann"]) as live:
        yield live


@pytest.fixture(scope="module")
def replica(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveReplica]:
    flags = [f"--key={user}={key}" for user, key in KEYS.items()]
    with LiveReplica(server, tmp_path_factory.mktemp("replica"), *flags) as live:
        yield live


@pytest.fixture(scope="module")
def service(server: LiveServer) -> Iterator[tinker.ServiceClient]:
    made = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    yield made
    made.close("success").result()


def client_of(server: LiveServer, user: str = "ann") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{server.url}/anthropic", api_key=KEYS[user], max_retries=0)


def sampled(service: tinker.ServiceClient, directory: Path, *, begin: str = "", **sampler: Any) -> tuple[str, int]:
    """The text that the Tinker SDK samples greedily, and how many tokens it is. ``begin``: of the answer."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompt = types.ModelInput.from_ints(tokenizer.encode(PROMPT + begin, add_special_tokens=False).ids)
    params = types.SamplingParams(max_tokens=12, temperature=0.0)
    answer = service.create_sampling_client(**sampler).sample(prompt, 1, params).result()
    [sequence] = answer.sequences
    return tokenizer.decode(sequence.tokens, skip_special_tokens=True), len(sequence.tokens)


def test_a_message_is_what_the_tinker_sdk_samples(
    server: LiveServer, service: tinker.ServiceClient, models: dict[str, Path]
) -> None:
    text, tokens = sampled(service, models[MODEL], base_model=MODEL)

    with client_of(server) as client:
        whole = client.messages.create(model=MODEL, extra_body={"temperature": 0}, **ASK)
        with client.messages.stream(model=MODEL, extra_body={"temperature": 0}, **ASK) as stream:
            pieces = list(stream.text_stream)
            told = stream.get_final_message()

    assert whole.content[0].text.strip() == "".join(pieces).strip() == text.strip()
    assert whole.usage.output_tokens == told.usage.output_tokens == tokens
    assert whole.stop_reason == told.stop_reason


def test_a_message_that_has_begun_is_continued(
    server: LiveServer, service: tinker.ServiceClient, models: dict[str, Path]
) -> None:
    text, _ = sampled(service, models[MODEL], begin="It is", base_model=MODEL)
    messages = [*ASK["messages"], {"role": "assistant", "content": "It is"}]

    with client_of(server) as client:
        answer = client.messages.create(model=MODEL, extra_body={"temperature": 0}, **{**ASK, "messages": messages})

    assert answer.content[0].text.strip() == text.strip()


def test_answers_match_their_schema_even_of_a_random_model(server: LiveServer) -> None:
    colour = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    closed = {**colour, "additionalProperties": False}
    asked: Any = {**ASK, "model": MODEL, "max_tokens": 200, "extra_body": {"seed": 1}}
    with client_of(server) as client:
        written = client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": closed}})
        called = client.messages.create(
            **asked,
            tools=[{"name": "paint", "input_schema": closed, "strict": True}],
            tool_choice={"type": "tool", "name": "paint"},
        )

    assert json.loads(written.content[0].text)["colour"] in ("red", "green")
    [call] = called.content
    assert (call.name, called.stop_reason) == ("paint", "tool_use")
    assert call.input["colour"] in ("red", "green")


def test_a_checkpoint_of_a_run_talks_to_its_owner_alone(
    server: LiveServer, service: tinker.ServiceClient, models: dict[str, Path]
) -> None:
    run = service.create_lora_training_client(base_model=MODEL, rank=4)
    path = run.save_weights_for_sampler("first").result().path
    text, _ = sampled(service, models[MODEL], model_path=path)

    with client_of(server) as ann, client_of(server, "bob") as bob:
        answer = ann.messages.create(model=path, extra_body={"temperature": 0}, **ASK)
        assert path in [model.id for model in ann.models.list()]
        assert path not in [model.id for model in bob.models.list()]
        for ask in (bob.messages.create, bob.messages.stream):
            with pytest.raises(anthropic.NotFoundError), ask(model=path, **ASK):
                pytest.fail("Bob talks to Ann's checkpoint")

    assert answer.content[0].text.strip() == text.strip()


def metric(server: LiveServer, name: str) -> float:
    """Of the worker, as it told last; 0: it has told nothing yet."""
    page = httpx.get(f"{server.url}/metrics", trust_env=False).text
    found = re.search(rf"^chockstone_{name} (\S+)$", page, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def wait_until(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_frees_its_place_in_the_worker(server: LiveServer, is_stream: bool) -> None:
    most, before = 7000, metric(server, "sampler_decoded_tokens_total")
    body = {**ASK, "model": MODEL, "max_tokens": most, "temperature": 0, "stream": is_stream}  # greedy: without an end
    headers = {"X-API-Key": KEYS["ann"], "Content-Type": "application/json"}
    path = "/anthropic/v1/messages"
    if is_stream:
        with (
            httpx.Client(headers=headers, timeout=60, trust_env=False) as http,
            http.stream("POST", f"{server.url}{path}", json=body) as answer,
        ):
            deltas = (line for line in answer.iter_lines() if line == "event: content_block_delta")
            assert len(list(islice(deltas, 30))) == 30
    else:
        connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        connection.request("POST", path, json.dumps(body), headers)  # returns before there is an answer
        wait_until(lambda: metric(server, "sampler_decoded_tokens_total") >= before + 30, "the worker does not decode")
        connection.close()

    wait_until(
        lambda: (
            not metric(server, "sampler_sequences")
            and metric(server, "sampler_decoded_tokens_total") >= before + 30  # it has told of the answer
        ),
        "the worker still decodes for nobody",
    )
    assert metric(server, "sampler_decoded_tokens_total") - before < most / 2, "it was cancelled"
    with server.http() as http:
        assert http.get("server").json()["queue"]["samples"] == 0


def test_users_of_a_replica_are_answered_as_by_the_server(server: LiveServer, replica: LiveReplica) -> None:
    async def ask_all() -> list[str]:
        async def ask(user: str, url: str) -> str:
            async with anthropic.AsyncAnthropic(base_url=f"{url}/anthropic", api_key=KEYS[user], max_retries=0) as made:
                extra = {"temperature": 0.7, "seed": 5}
                async with made.messages.stream(model=MODEL, extra_body=extra, **ASK) as stream:
                    return await stream.get_final_text()

        asked = [ask(user, each.url) for user in KEYS for each in (server, replica)]
        return list(await asyncio.gather(*asked))

    assert len(set(asyncio.run(ask_all()))) == 1
    with pytest.raises(anthropic.AuthenticationError, match="not known"):
        anthropic.Anthropic(base_url=f"{replica.url}/anthropic", api_key="tml-of-eve").models.list()
    with pytest.raises(anthropic.NotFoundError), client_of(replica) as client:
        client.messages.create(model="nothing", **ASK)
