"""Futures by raw HTTP: what the SDK relies on without asking for it in so many words."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from tinker import types

from chockstone.wire.codecs import messages_pb2 as pb
from hostile.strangers import PROTOBUF, Stranger, retrieve
from support.live import LiveServer
from support.served import Served, serve_in_process

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": list(range(10, 30))}]}


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with live.http() as client:
        yield client


@pytest.fixture
def stranger(http: httpx.Client) -> Stranger:
    return Stranger.meet(http)


@pytest.fixture
async def served(tmp_path: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The app on a backend that a test can hold back, and polls that end soon."""
    monkeypatch.setattr("chockstone.api.tinker.futures._HOLD_SECONDS", 0.2)
    async with serve_in_process(tmp_path, models) as served:
        yield served


def sample(stranger: Stranger, sampler: str, seq_id: int, **options: Any) -> dict[str, Any]:
    params = {"max_tokens": options.pop("max_tokens", 4), "stop": []}
    body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": PROMPT, "sampling_params": params, **options}
    answer = stranger.http.post("asample", json=body)
    assert answer.status_code == 200, answer.text
    accepted: dict[str, Any] = answer.json()
    return accepted


async def test_a_poll_that_waited_in_vain_is_told_to_try_again(served: Served) -> None:
    served.backend.hold("open_run")
    wish = {"session_id": await served.session(), "model_seq_id": 0, "base_model": "tiny-qwen3"}
    request_id = (await served.http.post("create_model", json=wish)).json()["request_id"]

    began = time.monotonic()
    answer = await served.http.post("retrieve_future", json={"request_id": request_id})

    assert time.monotonic() - began >= 0.2, "an answer at once is a busy loop"
    assert answer.status_code == 408
    assert answer.json() == {"type": "try_again", "request_id": request_id, "queue_state": "active"}
    served.backend.let_go("open_run")
    answer = await served.http.post("retrieve_future", json={"request_id": request_id})
    assert answer.json()["model_id"] == f"{wish['session_id']}:train:0"


async def test_while_models_load_the_queue_says_so(served: Served) -> None:
    served.backend.is_ready = False
    served.backend.hold("open_run")
    wish = {"session_id": await served.session(), "model_seq_id": 0, "base_model": "tiny-qwen3"}
    request_id = (await served.http.post("create_model", json=wish)).json()["request_id"]

    answer = await served.http.post("retrieve_future", json={"request_id": request_id})

    assert answer.status_code == 408
    assert answer.json()["queue_state"] == "paused_capacity"
    assert "loaded" in answer.json()["queue_state_reason"]
    served.backend.let_go("open_run")


async def test_a_feed_without_news_answers_its_cursor_again(served: Served) -> None:
    wish = {"session_id": await served.session(), "sampling_session_seq_id": 0, "base_model": "tiny-qwen3"}
    sampler = (await served.http.post("create_sampling_session", json=wish)).json()["sampling_session_id"]
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}

    first = await served.http.post("retrieve_futures", json={"target": target, "prev_cursor": 0})
    assert first.json()["completions"] == []
    cursor = first.json()["cursor"]

    for timeout in ({}, {"timeout": 0.0}, {"timeout": 0.1}, {"timeout": 1e9}):
        answer = await served.http.post("retrieve_futures", json={"target": target, "prev_cursor": cursor, **timeout})
        assert answer.json() == {"completions": [], "cursor": cursor}


async def test_a_poll_is_answered_as_soon_as_there_is_a_result(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chockstone.api.tinker.futures._HOLD_SECONDS", 60)
    served.backend.hold("open_run")
    wish = {"session_id": await served.session(), "model_seq_id": 0, "base_model": "tiny-qwen3"}
    request_id = (await served.http.post("create_model", json=wish)).json()["request_id"]

    polls = [
        asyncio.create_task(served.http.post("retrieve_future", json={"request_id": request_id})) for _ in range(2)
    ]
    await asyncio.sleep(0.1)
    assert not any(poll.done() for poll in polls)
    served.backend.let_go("open_run")

    answers = await asyncio.wait_for(asyncio.gather(*polls), 10)
    assert answers[0].content == answers[1].content
    assert answers[0].status_code == 200


def test_ids_that_never_were_are_404_and_ids_of_another_life_are_410(http: httpx.Client) -> None:
    assert http.post("retrieve_future", json={"request_id": "never-heard"}).status_code == 404
    assert http.post("retrieve_future", json={"request_id": "0badcafe-1f-12345678"}).status_code == 410


def test_a_result_can_be_fetched_again_and_by_two_at_once(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    request_id = sample(stranger, sampler, 0, num_samples=8, max_tokens=200)["request_id"]

    with ThreadPoolExecutor(2) as pool:
        together = [one.content for one in pool.map(lambda _: retrieve(stranger.http, request_id), range(2))]

    assert together[0] == together[1] == retrieve(stranger.http, request_id).content
    assert len(pb.SampleResponse.FromString(together[0]).sequences) == 8


def test_a_large_result_is_announced_first_if_the_client_wants_that(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    large = sample(stranger, sampler, 0, prompt={"chunks": [{"tokens": [5] * 2000}]}, topk_prompt_logprobs=100)
    small = sample(stranger, sampler, 1)

    whole = retrieve(stranger.http, large["request_id"])
    announced, direct = (
        stranger.http.post(
            "retrieve_future",
            json={"request_id": accepted["request_id"], "allow_metadata_only": True},
            headers={"Accept": PROTOBUF["Content-Type"]},
        )
        for accepted in (large, small)
    )

    assert announced.json() == {"status": "complete_metadata", "response_payload_size": len(whole.content)}
    assert direct.headers["content-type"] == PROTOBUF["Content-Type"]
    assert pb.SampleResponse.FromString(whole.content).topk_prompt_logprobs.k == 100


def test_clients_that_take_no_protobuf_get_json(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    sampled = sample(stranger, sampler, 0, num_samples=2, prompt_logprobs=True)["request_id"]
    passed = stranger.send(stranger.pass_message()).json()["request_id"]

    for request_id, kind in ((sampled, "sample"), (passed, "pass")):
        proto = retrieve(stranger.http, request_id)
        plain = stranger.http.post(
            "retrieve_future", json={"request_id": request_id}, headers={"Accept": "application/json"}
        )
        assert proto.headers["content-type"] == PROTOBUF["Content-Type"]
        assert plain.headers["content-type"] == "application/json"
        told = plain.json()
        if kind == "sample":
            sequences = pb.SampleResponse.FromString(proto.content).sequences
            assert [one["tokens"] for one in told["sequences"]] == [
                np.frombuffer(one.tokens, "<i4").tolist() for one in sequences
            ]
            assert told["prompt_logprobs"][0] is None
            assert len(told["prompt_logprobs"]) == 20
        else:
            output = pb.ForwardBackwardOutput.FromString(proto.content)
            assert told["metrics"] == dict(output.metrics)
            [logprobs] = [one["logprobs"] for one in told["loss_fn_outputs"]]
            data = np.frombuffer(output.loss_fn_outputs[0].fields["logprobs"].data, "<f4")
            assert logprobs["data"] == pytest.approx(data.tolist())


def test_a_failure_is_json_to_everyone(stranger: Stranger) -> None:
    request_id = sample(stranger, stranger.open_sampler(), 0, prompt={"chunks": [{"tokens": [10**9]}]})["request_id"]

    answer = retrieve(stranger.http, request_id)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["category"] == "user"


class Poller:
    """What ``retrieve_futures`` tells one clone."""

    def __init__(self, stranger: Stranger, sampler: str, clone: int = 0) -> None:
        self._http = stranger.http
        self._target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
        self.cursor = 0

    def poll(self, *, cursor: int | None = None, acknowledged: list[str] | None = None) -> dict[str, dict[str, Any]]:
        body = {
            "target": self._target,
            "prev_cursor": self.cursor if cursor is None else cursor,
            "timeout": 5,
            "retrieved_request_ids": acknowledged or [],
        }
        told = self._http.post("retrieve_futures", json=body).json()
        assert told["cursor"] >= self.cursor
        self.cursor = told["cursor"]
        return {completion["request_id"]: completion for completion in told["completions"]}

    def poll_until(self, count: int) -> dict[str, dict[str, Any]]:
        seen: dict[str, dict[str, Any]] = {}
        while len(seen) < count:
            news = self.poll()
            assert not set(news) & set(seen), "a completion is told once per cursor"
            seen |= news
        return seen


def test_a_feed_tells_each_completion_once_and_from_the_start_on_request(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    poller = Poller(stranger, sampler)
    good = [sample(stranger, sampler, seq_id)["request_id"] for seq_id in range(5)]
    bad = sample(stranger, sampler, 5, prompt={"chunks": [{"tokens": [10**9]}]})["request_id"]

    seen = poller.poll_until(6)

    assert set(seen) == {*good, bad}
    assert seen[bad] == {"request_id": bad, "state": "failed"}
    for request_id in good:
        size = len(retrieve(stranger.http, request_id).content)
        told = {"request_id": request_id, "state": "finished", "response_payload_uncompressed_size": size}
        assert seen[request_id] == told
    assert poller.poll(cursor=0) == seen, "a client that starts anew is told everything"
    assert set(poller.poll(cursor=0, acknowledged=good[:3])) == {*good[3:], bad}, "but not what it has"
    later = sample(stranger, sampler, 6)["request_id"]
    assert set(poller.poll()) == {later}


def test_the_sdk_polls_for_all_its_samples_at_once(live: LiveServer, service: tinker.ServiceClient) -> None:
    sampler = service.create_sampling_client(base_model="tiny-qwen3")
    prompt, count = types.ModelInput.from_ints(list(range(10, 30))), 40
    before = _requests(live)

    good = [sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, stop=[])) for _ in range(count)]
    bad = sampler.sample(types.ModelInput.from_ints([10**9]), 1, types.SamplingParams(max_tokens=8))

    assert [len(future.result().sequences[0].tokens) for future in good] == [8] * count
    with pytest.raises(tinker.RequestFailedError, match="1000000000"):
        bad.result()
    counts = {route: number - before.get(route, 0) for route, number in _requests(live).items()}
    assert counts["asample"] == counts["retrieve_future"] == count + 1, "each result is fetched once, when it is there"
    assert 1 <= counts["retrieve_futures"] <= count + 3


def test_a_client_that_closes_logs_no_failed_poll(
    live: LiveServer, connect: Callable[..., tinker.ServiceClient], caplog: pytest.LogCaptureFixture
) -> None:
    service = connect(live)
    sampler = service.create_sampling_client(base_model="tiny-qwen3")
    prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=3, stop=[])
    for future in [sampler.sample(prompt, 1, params) for _ in range(8)]:
        future.result()
    time.sleep(0.2)  # the SDK acknowledges the last results

    service.close("success").result()

    assert "polling failed" not in caplog.text


def _requests(server: LiveServer) -> dict[str, int]:
    """Answered requests so far, by the last part of their route."""
    counts: dict[str, int] = {}
    time.sleep(1.1)  # the page is kept for a second
    with server.http() as http:
        text = http.get(f"{server.url}/metrics").text
    for labels, number in re.findall(r"^chockstone_http_request_seconds_count\{(.*)\} (\S+)$", text, re.MULTILINE):
        route = labels.partition('route="')[2].partition('"')[0].rpartition("/")[2]
        counts[route] = counts.get(route, 0) + int(float(number))
    return counts


def test_a_poll_with_the_cursor_of_a_lost_journal_is_gone(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}

    told = stranger.http.post("retrieve_futures", json={"target": target, "prev_cursor": 0})
    lost = stranger.http.post("retrieve_futures", json={"target": target, "prev_cursor": 5 << 32})

    assert (told.status_code, told.json()["completions"]) == (200, [])
    assert told.json()["cursor"] > 5 << 32
    assert lost.status_code == 410
    assert "send the samples again" in lost.json()["detail"]


def test_a_feed_tells_of_its_own_clone_only(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    first = stranger.http.post("join_sampling_session", json={"sampling_session_id": sampler}).json()["client_counter"]
    second = stranger.http.post("join_sampling_session", json={"sampling_session_id": sampler}).json()["client_counter"]
    ids = {
        clone: {sample(stranger, sampler, clone * 10**9 + n)["request_id"] for n in range(3)}
        for clone in (0, first, second)
    }

    assert (first, second) == (1, 2)
    for clone, expected in ids.items():
        assert set(Poller(stranger, sampler, clone).poll_until(3)) == expected


def test_cancelling_is_always_fine_and_ends_what_is_running(stranger: Stranger) -> None:
    sampler = stranger.open_sampler()
    long = sample(stranger, sampler, 0, num_samples=100, max_tokens=8000)["request_id"]
    done = sample(stranger, sampler, 1)["request_id"]
    retrieve(stranger.http, done)
    passed = stranger.send(stranger.pass_message()).json()["request_id"]

    for request_id in ("never-heard", "0badcafe-1f-12345678", done, passed, long, long):
        assert stranger.http.post("cancel_future", json={"request_id": request_id}).is_success

    assert retrieve(stranger.http, long).json() == {"error": "the sample was cancelled", "category": "user"}
    assert retrieve(stranger.http, done).headers["content-type"] == PROTOBUF["Content-Type"]
    assert retrieve(stranger.http, passed).headers["content-type"] == PROTOBUF["Content-Type"]
    assert Poller(stranger, sampler).poll_until(2)[long]["state"] == "failed"


def test_a_repeated_sample_gets_its_first_answer(stranger: Stranger) -> None:
    sampler, other = stranger.open_sampler(0), stranger.open_sampler(1)

    first = sample(stranger, sampler, 7, num_samples=3)
    again = sample(stranger, sampler, 7, num_samples=3)
    different = sample(stranger, sampler, 7, num_samples=2, max_tokens=9)  # bodies are not compared
    elsewhere = sample(stranger, other, 7, num_samples=3)
    clone = sample(stranger, sampler, 999_999_999 * 10**9 + 7)

    assert first == again == different
    assert len(set(first["sample_sequence_ids"])) == 3
    assert len({first["request_id"], elsewhere["request_id"], clone["request_id"]}) == 3
    assert len(pb.SampleResponse.FromString(retrieve(stranger.http, first["request_id"]).content).sequences) == 3


def test_samples_without_a_sampling_session_are_each_their_own(stranger: Stranger) -> None:
    """Their numbers count within nothing, so that equal ones are no repeat."""
    body = {"base_model": "tiny-qwen3", "seq_id": 0, "prompt": PROMPT, "sampling_params": {"max_tokens": 2}}
    first, second = (stranger.http.post("asample", json=body).json() for _ in range(2))

    assert first["request_id"] != second["request_id"]
    assert retrieve(stranger.http, second["request_id"]).headers["content-type"] == PROTOBUF["Content-Type"]


def test_a_retried_ephemeral_save_keeps_its_request_although_its_session_number_changes(stranger: Stranger) -> None:
    wish = {"model_id": stranger.run_id, "seq_id": stranger.next_seq_id()}

    tries = [
        stranger.http.post("save_weights_for_sampler", json=wish | {"sampling_session_seq_id": number}).json()
        for number in (0, 1, 2)
    ]

    assert len({answer["request_id"] for answer in tries}) == 1
    told = retrieve(stranger.http, tries[0]["request_id"]).json()
    assert told["sampling_session_id"] == f"{stranger.session_id}:sample:0"
    sequence = sample(stranger, told["sampling_session_id"], 0)
    assert retrieve(stranger.http, sequence["request_id"]).headers["content-type"] == PROTOBUF["Content-Type"]
    assert stranger.http.get(f"samplers/{stranger.session_id}:sample:1").status_code == 404


def test_a_retried_sampling_session_is_the_same_one(stranger: Stranger) -> None:
    assert stranger.open_sampler(4) == stranger.open_sampler(4) == f"{stranger.session_id}:sample:4"


def test_futures_of_another_user_are_not_there(start_server: Callable[..., LiveServer]) -> None:
    server = start_server("--key", "ann=tml-ann-key", "--key", "bob=tml-bob-key", key="tml-ann-key")
    with server.http() as ann, server.http("tml-bob-key") as bob:
        stranger = Stranger.meet(ann)
        sampler = stranger.open_sampler()
        long = sample(stranger, sampler, 0, num_samples=2, max_tokens=300)["request_id"]

        assert bob.post("retrieve_future", json={"request_id": long}).status_code == 404
        assert bob.post("cancel_future", json={"request_id": long}).is_success
        target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
        assert bob.post("retrieve_futures", json={"target": target, "prev_cursor": 0}).status_code == 404
        assert bob.post("join_sampling_session", json={"sampling_session_id": sampler}).status_code == 404
        assert bob.get(f"samplers/{sampler}").status_code == 404
        body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": PROMPT}
        assert bob.post("asample", json=body).status_code == 404
        assert retrieve(ann, long).headers["content-type"] == PROTOBUF["Content-Type"], "bob cancelled nothing"
