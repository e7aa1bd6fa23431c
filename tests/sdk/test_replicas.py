"""Several workers behind one server: runs and samples are spread, replicas leave and join, and no bit tells where the
numbers were computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
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


def create_all(service: tinker.ServiceClient) -> list[tinker.TrainingClient]:
    return [create(service, seed=number) for number in range(RUNS)]


def train_all(runs: list[tinker.TrainingClient], *, start: int = 0, meanwhile: Callable[[], None] | None = None) -> Any:
    """What the passes gave. ``meanwhile`` is called when the runs have begun to train."""
    with ThreadPoolExecutor(RUNS) as pool:
        training = [pool.submit(train, run, STEPS, start=start) for run in runs]
        if meanwhile is not None:
            meanwhile()
        return [each.result() for each in training]


def change(server: LiveServer, path: str) -> Any:
    with server.http() as http:
        answer = http.post(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def runs_by_replica(server: LiveServer) -> dict[int, int]:
    return {each["number"]: each["runs"] for each in replicas_of(server)}


def sample(sampler: tinker.SamplingClient, seed: int) -> Any:
    params = types.SamplingParams(max_tokens=24, temperature=1.0, seed=seed)
    return sampler.sample(types.ModelInput.from_ints(tokens(seed, 8)), num_samples=1, sampling_params=params)


def test_four_runs_hear_what_they_hear_of_one_worker_while_replicas_leave_and_join(
    live: LiveServer,
    start_server: Callable[..., LiveServer],
    connect: Callable[..., tinker.ServiceClient],
) -> None:
    server = start_server("--replicas=2")
    wait_until_ready(server, 2)
    ours, theirs = create_all(connect(server)), create_all(connect(live))
    assert runs_by_replica(server) == {0: 2, 1: 2}

    heard = train_all(ours, meanwhile=lambda: change(server, "replicas/0/drain"))
    until(lambda: runs_by_replica(server) == {1: 4}, "replica 0 has left")
    assert change(server, "replicas")["number"] == 0
    heard += train_all(ours, start=STEPS)
    wait_until_ready(server, 2)
    change(server, "replicas/1/drain")
    heard += train_all(ours, start=2 * STEPS)
    until(lambda: runs_by_replica(server) == {0: 4}, "replica 1 has left")

    assert heard == [each for start in range(3) for each in train_all(theirs, start=start * STEPS)]


@pytest.mark.soak  # tests/unit/engine/runs/recovery/test_membership.py shows it with a backend of numbers
def test_a_full_disk_keeps_runs_where_they_are_and_says_so(
    start_server: Callable[..., LiveServer], connect: Callable[..., tinker.ServiceClient]
) -> None:
    """The reserve takes all space, which is what a full disk is to archives."""
    server = start_server("--replicas=2", "--spare-worker=off", f"--disk-reserve={1 << 60}")
    wait_until_ready(server, 2)
    run = create(connect(server))
    train(run, 1)

    change(server, "replicas/0/drain")
    until(lambda: "recovery archive not written" in server.log(), "the move has failed")

    assert len(train(run, 2, start=1)) == 2, "the run continues"
    [first, _] = replicas_of(server)
    assert (first["is_leaving"], first["runs"], first["restarts"]) == (True, 1, 0)
    change(server, "replicas/0/undrain")
    assert not replicas_of(server)[0]["is_leaving"]


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
