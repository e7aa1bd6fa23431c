"""Several workers behind one server: runs and samples are spread, and no bit tells where they were computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tinker
from tinker import types

from faults.crashes import until
from sdk.making import MODEL, create, tokens, train
from support.live import LiveServer

RUNS = 4
STEPS = 3


def replicas_of(server: LiveServer) -> list[dict[str, Any]]:
    with server.http() as http:
        shown: list[dict[str, Any]] = http.get("server").json()["worker"]["replicas"]
    return shown


def wait_until_ready(server: LiveServer, count: int) -> None:
    until(lambda: [each["state"] for each in replicas_of(server)] == ["ready"] * count, "all replicas are ready")


def train_all(service: tinker.ServiceClient) -> list[list[Any]]:
    runs = [create(service, seed=number) for number in range(RUNS)]
    with ThreadPoolExecutor(RUNS) as pool:
        return list(pool.map(lambda run: train(run, STEPS), runs))


def sample(sampler: tinker.SamplingClient, seed: int) -> Any:
    params = types.SamplingParams(max_tokens=24, temperature=1.0, seed=seed)
    return sampler.sample(types.ModelInput.from_ints(tokens(seed, 8)), num_samples=1, sampling_params=params)


def test_four_runs_on_two_replicas_hear_what_they_hear_of_one_worker(
    live: LiveServer,
    start_server: Callable[..., LiveServer],
    connect: Callable[..., tinker.ServiceClient],
) -> None:
    server = start_server("--replicas=2")
    wait_until_ready(server, 2)

    heard = train_all(connect(server))

    assert heard == train_all(connect(live))
    assert [each["runs"] for each in replicas_of(server)] == [2, 2]


def test_samples_are_spread_over_the_replicas_with_the_tokens_of_one_worker(
    live: LiveServer,
    start_server: Callable[..., LiveServer],
    connect: Callable[..., tinker.ServiceClient],
) -> None:
    server = start_server("--replicas=2")
    wait_until_ready(server, 2)
    service, other = connect(server), connect(live)

    def samplers(of: tinker.ServiceClient) -> list[tinker.SamplingClient]:
        run = create(of, seed=7)
        train(run, 1)
        return [run.save_weights_and_get_sampling_client(), of.create_sampling_client(base_model=MODEL)]

    ours, theirs = samplers(service), samplers(other)
    for seed in range(3):
        for one, another in zip(ours, theirs, strict=True):
            [mine], [expected] = sample(one, seed).result().sequences, sample(another, seed).result().sequences
            assert (mine.tokens, mine.logprobs) == (expected.tokens, expected.logprobs)

    asked = [sample(each, seed) for seed in range(16) for each in ours]
    assert all(len(each.result().sequences[0].tokens) for each in asked)
    until(lambda: all(each["decoded_tokens"] > 24 for each in replicas_of(server)), "both have sampled")
