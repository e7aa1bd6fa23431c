"""Floods: what the server cannot hold is answered with 429 and a time to wait, and the SDK gets through in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from hostile.strangers import PROTOBUF, Stranger, retrieve
from sdk.making import ADAM, MODEL, create, datum
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]
LIMITS = {"--max-queued-operations": 3, "--max-queued-samples": 6, "--max-runs": 2}
LONG = {"max_tokens": 8000, "stop": []}


@pytest.fixture(scope="module")
def small(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that takes little at a time."""
    flags = [f"{name}={value}" for name, value in LIMITS.items()]
    with LiveServer(models, tmp_path_factory.mktemp("small"), *flags) as server:
        yield server
        assert "Traceback" not in server.log()


@pytest.fixture
def http(small: LiveServer) -> Iterator[httpx.Client]:
    with small.http() as client:
        yield client


@pytest.fixture
def stranger(http: httpx.Client) -> Iterator[Stranger]:
    stranger = Stranger.meet(http)
    yield stranger
    finish(stranger)


def finish(stranger: Stranger) -> None:
    stranger.http.post(f"sessions/{stranger.session_id}/finish", json={"reason": {"type": "success"}, "detail": None})


def check_busy(answer: httpx.Response) -> str:
    assert answer.status_code == 429, answer.text
    assert 0 < float(answer.headers["retry-after"]) <= 60, "the SDK heeds no other"
    return str(answer.json()["detail"])


def test_too_many_operations_of_a_run(stranger: Stranger) -> None:
    def send() -> httpx.Response:
        message = stranger.pass_message()
        message.data.extend([message.data[0]] * 200)
        return stranger.send(message)

    answers = [send() for _ in range(12)]

    taken = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(taken) >= 3
    assert refused, "more were sent than one runs and three wait"
    for answer in refused:
        assert stranger.run_id in check_busy(answer)
    for answer in taken:
        result = retrieve(stranger.http, answer.json()["request_id"])
        assert result.headers["content-type"] == PROTOBUF["Content-Type"]
    assert stranger.loss() > 0


def test_an_operation_that_was_turned_away_can_be_sent_again(stranger: Stranger) -> None:
    messages = [stranger.pass_message() for _ in range(10)]
    for message in messages:
        message.data.extend([message.data[0]] * 200)
    answers = [stranger.send(message) for message in messages]
    for answer in answers:
        if answer.status_code == 200:
            retrieve(stranger.http, answer.json()["request_id"])

    turned_away = next(m for m, answer in zip(messages, answers, strict=True) if answer.status_code == 429)
    again = stranger.send(turned_away)

    assert again.status_code == 200
    assert retrieve(stranger.http, again.json()["request_id"]).headers["content-type"] == PROTOBUF["Content-Type"]


def test_too_many_samples(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    body = {"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [5, 6, 7]}]}, "sampling_params": LONG}

    answers = [stranger.http.post("asample", json=body | {"seq_id": number}) for number in range(7)]

    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 3, "one user may queue four of six"
    assert "samples" in check_busy(answers[-1])
    assert stranger.http.post("asample", json=body | {"seq_id": 2}).json() == answers[2].json(), "a repeat is no more"
    assert stranger.http.get("healthz").status_code == 200
    assert stranger.loss() > 0, "other work goes on"
    for answer in answers[:4]:
        stranger.http.post("cancel_future", json={"request_id": answer.json()["request_id"]})
        assert "cancelled" in retrieve(stranger.http, answer.json()["request_id"]).text
    short = body | {"sampling_params": {"max_tokens": 2}}
    while (answer := stranger.http.post("asample", json=short | {"seq_id": 6})).status_code == 429:
        pass  # until the worker has put down what was cancelled
    assert retrieve(stranger.http, answer.json()["request_id"]).headers["content-type"] == PROTOBUF["Content-Type"]


def test_the_sdk_gets_all_its_operations_through(
    small: LiveServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="tinker")
    run = create(connect(small))
    futures: list[Any] = []
    for number in range(6):
        futures.append(run.forward_backward([datum(number, length=200) for _ in range(16)], "cross_entropy"))
        futures.append(run.optim_step(ADAM))

    losses = [future.result().metrics for future in futures]

    assert "status code 429" in caplog.text, "some were turned away first"
    assert len(losses) == 12
    assert all("loss:sum" in metrics for metrics in losses[::2])


def test_the_sdk_gets_all_its_samples_through(small: LiveServer, connect: Connect) -> None:
    sampler = connect(small).create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=200, stop=[])

    futures = [sampler.sample(types.ModelInput.from_ints([5, 6, number]), 4, params) for number in range(12)]

    assert {len(one.tokens) for future in futures for one in future.result().sequences} == {200}


def test_the_sdk_trains_more_runs_than_there_is_room_for(small: LiveServer, connect: Connect) -> None:
    service = connect(small)
    runs = [create(service) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        losses = list(pool.map(lambda run: _train(run, steps=3), runs))

    assert len({run.model_id for run in runs}) == 3
    assert losses[0] == losses[1] == losses[2]


def _train(run: Any, *, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(run.forward_backward([datum(1, length=20)], "cross_entropy").result().metrics["loss:sum"])
        run.optim_step(ADAM).result()
    return losses


def test_many_clients_that_ask_and_leave_harm_nobody(stranger: Stranger, small: LiveServer) -> None:
    def hurry(number: int) -> None:
        with small.http() as client:
            body = {"sampling_session_id": sampler, "seq_id": number, "prompt": {"chunks": [{"tokens": [5]}]}}
            answer = client.post("asample", json=body | {"sampling_params": {"max_tokens": 30, "stop": []}})
            if answer.status_code == 200:
                with suppress(httpx.TimeoutException):
                    client.post("retrieve_future", json=answer.json(), timeout=0.0001)

    sampler = stranger.open_sampler()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(hurry, range(64)))

    assert stranger.loss() > 0
