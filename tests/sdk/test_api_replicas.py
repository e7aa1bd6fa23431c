"""Further API processes before one engine: clients of either see one server, and lose nothing with one of them."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from faults.crashes import RestartedServer, until, used
from sdk.checkpoints import archive_of, listed, signed_url
from sdk.making import ADAM, batch, create, numbers, rest_client, tokens, train
from support.api_replicas import Balancer, LiveReplica
from support.live import LiveServer

STEPS = 6
TOKENS = sum(datum.model_input.length for number in range(STEPS) for datum in batch(number))  # that a run trains
Replicas = tuple[LiveReplica, LiveReplica]
Connect = Callable[..., tinker.ServiceClient]


@pytest.fixture(scope="module")
def engine(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedServer]:
    with RestartedServer(models, tmp_path_factory.mktemp("engine"), "--recovery-steps=3", is_executed=False) as server:
        yield server


@pytest.fixture(scope="module")
def replicas(engine: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    home = tmp_path_factory.mktemp("replicas")
    with LiveReplica(engine, home / "one") as one, LiveReplica(engine, home / "other") as other:
        yield one, other


@pytest.fixture(scope="module")
def balancer(replicas: Replicas) -> Iterator[Balancer]:
    with Balancer(replicas) as balancer:
        yield balancer


@pytest.fixture(scope="module")
def undisturbed(engine: LiveServer) -> list[Any]:
    """What a client hears that speaks to the engine's server itself."""
    client = tinker.ServiceClient(base_url=engine.url, api_key=engine.key)
    try:
        return train(create(client), STEPS)
    finally:
        client.close("success").result()


class Asked:
    """All steps of a run, asked for at once."""

    def __init__(self, run: tinker.TrainingClient) -> None:
        self._passes = []
        for number in range(STEPS):
            self._passes.append(run.forward_backward(batch(number), "cross_entropy"))
            self._last = run.optim_step(ADAM)

    def heard(self) -> list[Any]:
        self._last.result()
        outputs = [each.result() for each in self._passes]
        return [(output.metrics["loss:sum"], numbers(output)) for output in outputs]


def come_back(replica: LiveReplica, deaths: int) -> None:
    replica.wait_for_next(deaths)
    until(lambda: answers(replica), "it answers again")


def answers(replica: LiveReplica) -> bool:
    try:
        with replica.http() as http:
            return http.get("healthz").is_success
    except httpx.TransportError:
        return False


def test_two_clients_through_two_replicas_train_as_without(
    replicas: Replicas, undisturbed: list[Any], connect: Connect
) -> None:
    runs = [create(connect(replica)) for replica in replicas]
    asked = [Asked(run) for run in runs]

    assert [each.heard() for each in asked] == [undisturbed, undisturbed]
    for run, other in zip(runs, reversed(replicas), strict=True):
        assert used(other, [run.model_id]) == {"training": TOKENS}


def test_what_is_made_through_one_is_there_through_the_other(
    replicas: Replicas, engine: LiveServer, connect: Connect
) -> None:
    one, other = replicas
    run = create(connect(one))
    train(run, 2)
    state, weights = run.save_state("state").result().path, run.save_weights_for_sampler("weights").result().path

    rest = rest_client(other)
    assert listed(rest, run.model_id) == {"weights/state", "sampler_weights/weights"}
    assert rest.get_training_run(run.model_id).result().last_checkpoint.tinker_path == state
    with other.http() as http:
        url = signed_url(http, state)
    assert url.startswith(other.url)
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == archive_of(engine, state).read_bytes()
    again = connect(other).create_training_client_from_state_with_optimizer(state)
    assert train(again, 2, start=2) == train(run, 2, start=2)
    asked = types.ModelInput.from_ints(tokens(1)), 1, types.SamplingParams(max_tokens=8, seed=1)
    heard = [
        connect(each).create_sampling_client(weights).sample(*asked).result().sequences[0].tokens for each in replicas
    ]
    assert heard[0] == heard[1]
    rest.delete_checkpoint_from_tinker_path(state).result()
    assert listed(rest_client(one), run.model_id) == {"sampler_weights/weights"}


def test_an_api_replica_that_is_killed_and_started_again_costs_its_connections_only(
    replicas: Replicas, undisturbed: list[Any], connect: Connect
) -> None:
    replica = replicas[0]
    run = create(connect(replica))
    deaths = len(replica.deaths)

    asked = Asked(run)
    replica.kill_server()

    assert asked.heard() == undisturbed
    come_back(replica, deaths + 1)


def test_a_client_goes_on_through_the_other_replica_when_one_is_gone(
    replicas: Replicas, balancer: Balancer, undisturbed: list[Any]
) -> None:
    one, other = replicas
    client = tinker.ServiceClient(base_url=balancer.url, api_key=one.key)
    run = create(client)
    deaths = len(one.deaths)

    asked = Asked(run)
    one.hold()
    one.kill_server()

    assert asked.heard() == undisturbed
    client.close("success").result()
    assert not one.is_running()
    assert other.is_running()
    one.release()
    come_back(one, deaths + 1)


@pytest.mark.soak
def test_an_engine_that_is_killed_behind_a_replica_comes_back(
    engine: RestartedServer, replicas: Replicas, undisturbed: list[Any], connect: Connect
) -> None:
    replica = replicas[1]
    run = create(connect(replica))
    deaths = len(engine.deaths)

    asked = Asked(run)
    engine.kill_both()

    assert asked.heard() == undisturbed
    assert len(engine.deaths) == deaths + 1
    assert replica.deaths == []
    assert used(replica, [run.model_id]) == {"training": TOKENS}
