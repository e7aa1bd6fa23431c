"""Samples by real vLLM servers, through the SDK: what the server's own sampler gives, they give.

The suite of the SDK's samples runs here again, unchanged. One server gives logprobs as the model has them, and
scores prompts; the others give them as they were sampled from, and adapt the output layer. A sample that its
server cannot give exactly is the worker's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from engines import Engine
from tinker import types

from sdk.making import ADAM, batch, tokens
from sdk.test_sampling import *  # noqa: F403  # the suite
from support.live import LiveServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
TOLERANCE = 1e-4
LORAS = 2
QWEN3, LLAMA = "tiny-qwen3", "tiny-llama"
BLOCKS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
WAYS = ["named", "unnamed", "training state"]


@pytest.fixture(scope="module")
def engines(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """Two for one model, and one for the other."""
    home = tmp_path_factory.mktemp("vllm")
    tempered = ("--logprobs-mode", "processed_logprobs")
    made = {
        "first": Engine(QWEN3, models[QWEN3], home / "first", *tempered),
        "second": Engine(QWEN3, models[QWEN3], home / "second", *tempered),
        "llama": Engine(LLAMA, models[LLAMA], home / "llama", "--lora-target-modules", *BLOCKS),
    }
    try:
        for engine in made.values():
            engine.launch()
        for engine in made.values():
            engine.wait()
        yield made
    finally:
        for engine in made.values():
            engine.kill()


@pytest.fixture(scope="module")
def live(
    models: dict[str, Path], engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    flags = ["--sampler=vllm", f"--vllm-max-loras={LORAS}"]
    flags += ["--sampler-gap-limit=off"]  # tests count requests, and those of probes would be among them
    flags += [f"--vllm-url={engine.url}" for engine in engines.values()]
    with LiveServer(models, tmp_path_factory.mktemp("live"), *flags) as server:
        yield server
    assert [path.name for path in (server.data / "vllm-adapters").iterdir()] == [".lock"]
    assert not any(engine.adapters() for engine in engines.values())


@pytest.fixture(scope="module")
def plain(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The same, with its own sampler."""
    with LiveServer(models, tmp_path_factory.mktemp("plain")) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[[LiveServer], tinker.ServiceClient]]:
    clients: list[tinker.ServiceClient] = []

    def make(server: LiveServer) -> tinker.ServiceClient:
        clients.append(tinker.ServiceClient(base_url=server.url, api_key=server.key))
        return clients[-1]

    yield make
    for client in clients:
        client.close("success").result()


@pytest.fixture
def service(live: LiveServer, connect: Callable[[LiveServer], tinker.ServiceClient]) -> tinker.ServiceClient:
    return connect(live)


def trained(service: tinker.ServiceClient, *, model: str = QWEN3, steps: int = 3, **options: Any) -> Any:
    """A run whose samples differ from the base model's; the same on every server."""
    run = service.create_lora_training_client(base_model=model, rank=8, seed=1, **options)
    for number in range(steps):
        run.forward_backward(batch(number), "cross_entropy").result()
        run.optim_step(ADAM).result()
    return run


def scores(sampler: tinker.SamplingClient, text: list[int]) -> np.ndarray:
    told = sampler.compute_logprobs(types.ModelInput.from_ints(text)).result()
    return np.array(told[1:], np.float64)


def ask(
    sampler: tinker.SamplingClient, prompt: list[int], num_samples: int = 1, **params: Any
) -> list[types.SampledSequence]:
    given = types.SamplingParams(**{"max_tokens": 24, "stop": [], **params})
    return list(sampler.sample(types.ModelInput.from_ints(prompt), num_samples, given).result().sequences)


def count(engines: dict[str, Engine]) -> int:
    return sum(engine.requests() for engine in engines.values())


def test_the_suite_was_answered_by_vllm(engines: dict[str, Engine], live: LiveServer) -> None:
    """Last of all that is imported: what could be was."""
    assert all(engine.requests() > 5 for engine in engines.values())


def sampler_of(service: tinker.ServiceClient, run: Any, way: str) -> tinker.SamplingClient:
    match way:
        case "unnamed":
            return run.save_weights_and_get_sampling_client()
        case "training state":
            return service.create_sampling_client(model_path=run.save_state("state").result().path)
        case _:
            return service.create_sampling_client(model_path=run.save_weights_for_sampler("named").result().path)


@pytest.mark.parametrize("way", [*WAYS, "base"])
def test_vllm_scores_prompts_as_the_servers_own_sampler(
    live: LiveServer,
    plain: LiveServer,
    engines: dict[str, Engine],
    connect: Callable[[LiveServer], tinker.ServiceClient],
    way: str,
) -> None:
    texts = [tokens(seed, 5 + 40 * seed) for seed in range(1, 5)]
    found, before = [], count(engines)
    for server in (live, plain):
        service = connect(server)
        base = service.create_sampling_client(base_model=LLAMA)
        if way == "base":
            found.append([scores(base, text) for text in texts])
            continue
        sampler = sampler_of(service, trained(service, model=LLAMA, train_unembed=False), way)
        found.append([scores(sampler, text) for text in texts])
        assert np.abs(scores(base, texts[0]) - found[-1][0]).max() > 0.1, "the adapter makes a difference"

    assert count(engines) - before == len(texts) + (way != "base")
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_vllm_samples_with_the_logprobs_of_the_servers_own_sampler(
    live: LiveServer,
    plain: LiveServer,
    engines: dict[str, Engine],
    connect: Callable[[LiveServer], tinker.ServiceClient],
    way: str,
    temperature: float,
) -> None:
    """Of adapters of all layers, the output layer among them."""
    prompt = tokens(3, 20)
    ours, theirs = [sampler_of(connect(server), trained(connect(server)), way) for server in (live, plain)]
    before = count(engines)

    sequences = ask(ours, prompt, 4, temperature=temperature, seed=5)

    assert count(engines) - before == 1
    assert len({tuple(sequence.tokens) for sequence in sequences}) == (4 if temperature else 1)
    if temperature == 0:
        assert sequences[0].tokens == ask(theirs, prompt, temperature=0.0)[0].tokens
    for sequence in sequences:
        expected = scores(theirs, prompt + sequence.tokens)[len(prompt) - 1 :]
        np.testing.assert_allclose(sequence.logprobs, expected, atol=TOLERANCE, rtol=0)


def test_a_seed_repeats_its_samples_on_either_server(live: LiveServer, service: tinker.ServiceClient) -> None:
    sampler = trained(service).save_weights_and_get_sampling_client()

    times = [[sequence.tokens for sequence in ask(sampler, tokens(2), 4, seed=7)] for _ in range(4)]

    assert times[0] == times[1] == times[2] == times[3]
    assert times[0] != [sequence.tokens for sequence in ask(sampler, tokens(2), 4, seed=8)]


def test_a_stop_ends_samples_of_adapters_with_the_token_that_completes_it(service: tinker.ServiceClient) -> None:
    run = trained(service)
    sampler = run.save_weights_and_get_sampling_client()
    [whole] = ask(sampler, tokens(4), temperature=0.0, max_tokens=20)
    place = next(i for i in range(4, 20) if whole.tokens[i] not in whole.tokens[:i])
    text = run.get_tokenizer().decode(whole.tokens[place : place + 1])

    [by_token] = ask(sampler, tokens(4), temperature=0.0, max_tokens=20, stop=[whole.tokens[place]])
    [by_string] = ask(sampler, tokens(4), temperature=0.0, max_tokens=20, stop=[text])

    assert (by_token.tokens, by_token.stop_reason) == (whole.tokens[: place + 1], "stop")
    assert by_string.stop_reason == "stop"
    assert by_string.tokens == whole.tokens[: len(by_string.tokens)]
    assert len(by_string.tokens) == len(by_string.logprobs) <= place + 1


def test_more_adapters_than_a_server_holds_take_turns(
    service: tinker.ServiceClient, engines: dict[str, Engine]
) -> None:
    run = trained(service, steps=0, model=LLAMA, train_unembed=False)
    prompt, samplers, expected = tokens(6, 30), [], []
    for number in range(5):
        run.forward_backward(batch(number), "cross_entropy").result()
        run.optim_step(ADAM).result()
        path = run.save_weights_for_sampler(f"step-{number}").result().path
        samplers.append(service.create_sampling_client(model_path=path))
        expected.append(scores(samplers[-1], prompt))

    for number in (0, 4, 1, 3, 2, 0):
        np.testing.assert_allclose(scores(samplers[number], prompt), expected[number], atol=1e-6)
        assert all(len(engine.adapters()) <= LORAS for engine in engines.values())
    assert len({round(float(score.sum()), 3) for score in expected}) == 5


def test_many_at_once_of_many_adapters_are_all_answered(service: tinker.ServiceClient) -> None:
    run = trained(service, steps=1)
    samplers = []
    for number in range(4):
        run.forward_backward(batch(number), "cross_entropy").result()
        run.optim_step(ADAM).result()
        samplers.append(run.save_weights_and_get_sampling_client())
    params = types.SamplingParams(max_tokens=8, stop=[], seed=1)
    prompt = types.ModelInput.from_ints(tokens(1))

    asked = [[sampler.sample(prompt, 2, params) for _ in range(6)] for sampler in samplers]

    answers = [[each.result().sequences[0].tokens for each in futures] for futures in asked]
    assert all(len({tuple(answer) for answer in each}) == 1 for each in answers)


def test_whole_models_are_refused_with_what_is_supported(service: tinker.ServiceClient) -> None:
    run = service.create_lora_training_client(base_model=QWEN3, rank=0)
    sampler = run.save_weights_and_get_sampling_client()

    with pytest.raises(tinker.RequestFailedError, match="LoRA adapters only.*save_weights_external"):
        ask(sampler, tokens(1))


def test_what_no_server_will_load_fails_with_its_words(service: tinker.ServiceClient) -> None:
    run = service.create_lora_training_client(base_model=QWEN3, rank=32)
    sampler = run.save_weights_and_get_sampling_client()

    with pytest.raises(tinker.RequestFailedError, match="rank 32 is greater than max_lora_rank 16.*--max-lora-rank"):
        ask(sampler, tokens(1))


def test_what_a_killed_server_had_is_done_by_another_and_it_is_used_again_when_it_is_back(
    service: tinker.ServiceClient, engines: dict[str, Engine], live: LiveServer
) -> None:
    sampler = trained(service).save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=150, stop=[], seed=3)
    prompt = types.ModelInput.from_ints(tokens(9))
    alone = sampler.sample(prompt, 1, params).result().sequences[0].tokens

    asked = [sampler.sample(prompt, 1, params) for _ in range(8)]
    time.sleep(0.5)
    engines["first"].kill()
    answers = [each.result().sequences[0].tokens for each in asked]
    engines["first"].launch()
    engines["first"].wait()
    few = types.SamplingParams(max_tokens=2, stop=[])
    deadline = time.monotonic() + 300
    while not any("probe" not in name for name in engines["first"].adapters()):
        [each.result() for each in [sampler.sample(prompt, 1, few) for _ in range(4)]]
        assert time.monotonic() < deadline, live.log()[-3000:]

    assert answers == [alone] * 8


def test_samples_wait_until_the_only_server_of_their_model_is_back(
    service: tinker.ServiceClient, engines: dict[str, Engine]
) -> None:
    sampler = trained(service, model=LLAMA, train_unembed=False).save_weights_and_get_sampling_client()
    prompt = tokens(8)
    before = scores(sampler, prompt)
    engines["llama"].kill()

    asked = sampler.compute_logprobs(types.ModelInput.from_ints(prompt))
    engines["llama"].launch()
    engines["llama"].wait()

    np.testing.assert_allclose(np.array(asked.result()[1:], np.float64), before, atol=1e-6)


def test_a_server_that_was_killed_comes_back_to_its_vllm_servers(
    models: dict[str, Path], engines: dict[str, Engine], tmp_path: Path
) -> None:
    urls = [f"--vllm-url={engines[name].url}" for name in ("first", "llama")]
    with LiveServer(models, tmp_path, "--sampler=vllm", *urls) as server:
        client = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        sampler = trained(client).save_weights_and_get_sampling_client()
        [before] = ask(sampler, tokens(5), temperature=0.0)
        held = engines["first"].adapters()
        server.kill()
        server.start()
        left = engines["first"].adapters() & held

        [after] = ask(sampler, tokens(5), temperature=0.0)

        assert after.tokens == before.tokens
        assert (len(held), left) == (1, set())
        client.close("success").result()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=other={model}", "--vllm-url={url}"], "serves 'tiny-qwen3', and this server 'other'"),
        (["--model=tiny-qwen3={model}", "--model=b={model}", "--vllm-url={url}"], "no vLLM server serves the model"),
    ],
)
def test_a_server_that_serves_other_models_is_told_apart_at_the_start(
    models: dict[str, Path], engines: dict[str, Engine], tmp_path: Path, flags: list[str], message: str
) -> None:
    given = [flag.format(model=models[QWEN3], url=engines["first"].url) for flag in flags]
    server = LiveServer({}, tmp_path, "--sampler=vllm", *given)

    code = server.launch().wait(60)

    assert code == 1
    assert message in server.log()
