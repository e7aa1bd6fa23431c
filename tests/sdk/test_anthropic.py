"""Anthropic's SDK, unmodified, against a live server and a replica of it: the text that the Tinker SDK samples, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
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


def sampled(service: tinker.ServiceClient, directory: Path, **sampler: Any) -> tuple[str, int]:
    """The text that the Tinker SDK samples greedily, and how many tokens it is."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompt = types.ModelInput.from_ints(tokenizer.encode(PROMPT, add_special_tokens=False).ids)
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
