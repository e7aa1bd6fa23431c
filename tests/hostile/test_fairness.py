"""Fairness: one user who floods the samplers keeps no other waiting. Counted in work of the flood, not in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from hostile.strangers import PATIENCE_SECONDS, Stranger, retrieve
from sdk.making import MODEL
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]
QUEUE, PLACES, SMALL = 64, 8, 16
RESERVE = PLACES // 4  # places for users who have nothing running
LONG = {"max_tokens": 8000, "stop": []}


def key_of(user: str) -> str:
    return f"tml-of-{user}"


USERS = ["flood", *(f"user{number}" for number in range(SMALL))]


@pytest.fixture(scope="module")
def shared(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with keys and a short queue."""
    flags = [f"--max-queued-samples={QUEUE}", f"--max-sequences={PLACES}"]
    flags += [f"--key={user}={key_of(user)}" for user in USERS]
    with LiveServer(models, tmp_path_factory.mktemp("shared"), *flags, key=key_of("flood")) as server:
        yield server
        assert "Traceback" not in server.log()


class Flood:
    """Fills the queue as far as it may be filled, with samples of thousands of tokens."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        body = {"sampling_session_id": Stranger.meet(http).open_sampler(), "sampling_params": LONG}
        body["prompt"] = {"chunks": [{"tokens": [5, 6, 7]}]}
        self.request_ids: list[str] = []
        while (answer := http.post("asample", json=body | {"seq_id": len(self.request_ids)})).status_code == 200:
            self.request_ids.append(answer.json()["request_id"])
        assert answer.status_code == 429, answer.text
        self.refusal = str(answer.json()["detail"])

    def cancel_one(self, number: int) -> None:
        """The first ones are those that have places."""
        self._http.post("cancel_future", json={"request_id": self.request_ids[number]})

    def cancel(self) -> int:
        """Returns how many were finished by then."""
        for number in range(len(self.request_ids)):
            self.cancel_one(number)
        outcomes = [retrieve(self._http, request_id).text for request_id in self.request_ids]
        return sum("cancelled" not in outcome for outcome in outcomes)


@pytest.fixture
def samplers(shared: LiveServer, connect: Connect) -> list[tinker.SamplingClient]:
    """Of the small clients, connected before the flood: only their samples are counted against it."""
    return [connect(shared, key=key_of(user)).create_sampling_client(base_model=MODEL) for user in USERS[1:]]


@pytest.fixture
def flood(shared: LiveServer) -> Iterator[Flood]:
    with shared.http() as http:
        flood = Flood(http)
        yield flood
        flood.cancel()


def test_sixteen_small_clients_wait_for_no_sample_of_one_who_floods(
    samplers: list[tinker.SamplingClient], flood: Flood, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="tinker")
    params = types.SamplingParams(max_tokens=4, stop=[])

    asked = [sampler.sample(types.ModelInput.from_ints([5, 6, 7]), 2, params) for sampler in samplers]
    lengths = [len(sequence.tokens) for each in asked for sequence in each.result(timeout=PATIENCE_SECONDS).sequences]

    assert lengths == [4] * 2 * SMALL
    assert "status code 429" not in caplog.text, "there was room for each at the first attempt"
    assert flood.cancel() == 0, "all were answered before the first sample of the flood had its 8000 tokens"
    assert len(flood.request_ids) == 3 * QUEUE // 4, "one user may fill three quarters of the queue"
    assert f"{len(flood.request_ids)} of your samples are queued" in flood.refusal


def test_small_clients_score_prompts_beside_a_flood(shared: LiveServer, flood: Flood) -> None:
    def score(user: str) -> bool:
        with shared.http(key_of(user)) as http:
            body = {
                "base_model": MODEL,
                "prompt": {"chunks": [{"tokens": [5, 6, 7]}]},
                "sampling_params": {"max_tokens": 1},
                "prompt_logprobs": True,
            }
            accepted = http.post("asample", json=body)
            assert accepted.status_code == 200, accepted.text
            answer = retrieve(http, accepted.json()["request_id"])
            return "error" not in answer.text

    with ThreadPoolExecutor(SMALL) as pool:
        assert all(pool.map(score, USERS[1:]))

    assert flood.cancel() == 0


def ask(http: httpx.Client, **params: Any) -> str:
    """Ask for one sample; returns the id of the accepted request."""
    prompt = {"chunks": [{"tokens": [5, 6, 7]}]}
    answer = http.post("asample", json={"base_model": MODEL, "prompt": prompt, "sampling_params": params})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["request_id"])


def test_places_that_a_flood_frees_go_to_small_clients_while_others_hold_the_reserve(
    shared: LiveServer, flood: Flood
) -> None:
    holders, small = USERS[1 : 1 + RESERVE], USERS[1 + RESERVE : 15]
    with ExitStack() as stack:
        clients = {user: stack.enter_context(shared.http(key_of(user))) for user in (*holders, *small)}
        first = clients[small[0]]
        retrieve(first, ask(first, max_tokens=2, stop=[]))  # by now the flood has all common places
        held = {user: ask(clients[user], **LONG) for user in holders}
        asked = {user: ask(clients[user], max_tokens=4, stop=[]) for user in small}

        answers = []
        for number, (user, request_id) in enumerate(asked.items()):
            if number < PLACES:
                flood.cancel_one(number)
            answers.append(retrieve(clients[user], request_id).text)

        for user, request_id in held.items():
            clients[user].post("cancel_future", json={"request_id": request_id})
        outcomes = [retrieve(clients[user], request_id).text for user, request_id in held.items()]
    assert not [answer for answer in answers if "error" in answer]
    assert flood.cancel() == 0, "no small client waited for a sample of the flood to have its 8000 tokens"
    assert all("cancelled" in outcome for outcome in outcomes), "nor for one of those who hold the reserve"
