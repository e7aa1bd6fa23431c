"""What clients meet when a server was restarted, is about to end, or cannot go on for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.api.tinker import futures as futures_api
from chockstone.engine.config import StorageRules
from chockstone.engine.journal.stall import Stalled
from chockstone.wire.failures import ServerFailure
from support.api.users import User, refusal
from support.served import Served, serve_in_process

LOSS = {
    "name": "mine",
    "inputs": [{"name": "logprobs", "rank": 1}],
    "graph": {"nodes": [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]},
}


@asynccontextmanager
async def server(home: Path, models: dict[str, Path]) -> AsyncIterator[tuple[Served, User]]:
    async with serve_in_process(home, models, rules=StorageRules(reserve_bytes=0)) as served:
        yield served, User("local", served.http)


def step(run_id: str, seq_id: int) -> dict[str, Any]:
    return {"model_id": run_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-4}}


async def retrieve(user: User, request_id: str) -> httpx.Response:
    return await user.http.post("retrieve_future", json={"request_id": request_id})


async def test_a_retried_request_gets_its_first_answer_from_the_next_server(
    store: Path, models: dict[str, Path]
) -> None:
    async with server(store.parent, models) as (_, user):
        run_id = await user.run()
        first = (await user.http.post("optim_step", json=step(run_id, 5))).json()["request_id"]
        told = (await retrieve(user, first)).json()

    async with server(store.parent, models) as (_, user):
        again = (await user.http.post("optim_step", json=step(run_id, 5))).json()["request_id"]

        assert again == first == f"{run_id}:5"
        assert (await retrieve(user, again)).json() == told
        assert (await user.result("optim_step", step(run_id, 6)))["metrics"]["steps"] == 2.0


async def test_what_a_run_is_can_be_asked_while_it_is_parked(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()
    live = context.engine.runs.get(run_id)
    assert live is not None
    context.engine.runs.remove(live)
    monkeypatch.setattr(context.engine, "wake", lambda _: pytest.fail("it was brought back"))

    told = await ann.http.post("get_info", json={"model_id": run_id})

    assert (told.json()["model_name"], told.json()["lora_rank"]) == ("tiny", 4)


async def test_nobody_elses_run_is_brought_back(
    context: Context, ann: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()
    live = context.engine.runs.get(run_id)
    assert live is not None
    context.engine.runs.remove(live)
    woken = []

    async def wake(asked: str) -> object:
        woken.append(asked)
        return live

    monkeypatch.setattr(context.engine, "wake", wake)

    refused = await bob.http.post("optim_step", json=step(run_id, 9))
    assert "not yours or not there" in refusal(refused, 404)
    assert "there is no request" in refusal(await retrieve(bob, f"{run_id}:9"), 404)  # nor is one that is there
    assert woken == []
    assert (await ann.http.post("optim_step", json=step(run_id, 9))).status_code == 200
    assert woken == [run_id]


async def test_a_result_that_is_not_kept_any_more_is_told_from_one_that_never_was(context: Context, ann: User) -> None:
    run_id = await ann.run()
    await ann.result("optim_step", step(run_id, 7))
    context.engine.futures.forget(f"{run_id}:7")

    assert "not kept any longer" in refusal(await retrieve(ann, f"{run_id}:7"), 410)
    for stranger in (run_id.partition(":")[0], "x"):
        assert "there is no request" in refusal(await retrieve(ann, stranger), 404)


async def test_another_users_result_is_not_there(ann: User, bob: User) -> None:
    run_id = await ann.run()
    request_id = (await ann.http.post("optim_step", json=step(run_id, 7))).json()["request_id"]

    assert "there is no request" in refusal(await retrieve(bob, request_id), 404)
    assert (await retrieve(ann, request_id)).status_code == 200


async def test_who_asks_for_a_run_that_cannot_be_brought_back_now_is_told_why_and_does_not_ask_at_once(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()
    held: list[float] = []

    async def wake(asked: str) -> object:
        raise ServerFailure(f"{asked} was written by a newer version")

    async def hold(seconds: float) -> None:
        held.append(seconds)

    monkeypatch.setattr(context.engine, "wake", wake)
    monkeypatch.setattr(futures_api.asyncio, "sleep", hold)

    answer = await retrieve(ann, f"{run_id}:9")

    assert answer.status_code == 408
    assert answer.json()["queue_state"] == "paused_capacity"
    assert "newer version" in answer.json()["queue_state_reason"]
    assert held.count(futures_api._HOLD_SECONDS) == 1  # the server sleeps elsewhere, too


@pytest.mark.parametrize(("reason", "state"), [("the run is being brought back", "paused_capacity"), (None, "active")])
async def test_who_waits_is_told_why(
    reason: str | None, state: str, served: Served, context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()
    served.backend.hold("optim_step")
    request_id = (await ann.http.post("optim_step", json=step(run_id, 7))).json()["request_id"]
    monkeypatch.setattr(futures_api, "_HOLD_SECONDS", 0.01)
    monkeypatch.setattr(context.engine, "why_waiting", {request_id: reason}.__getitem__)

    answer = await retrieve(ann, request_id)

    assert answer.status_code == 408
    assert (answer.json()["queue_state"], answer.json().get("queue_state_reason")) == (state, reason)
    served.backend.let_go("optim_step")


async def test_polls_are_answered_when_the_server_ends(served: Served, context: Context, ann: User) -> None:
    run_id = await ann.run()
    served.backend.hold("optim_step")
    request_id = (await ann.http.post("optim_step", json=step(run_id, 7))).json()["request_id"]
    sampler = {"session_id": run_id.partition(":")[0], "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler_id = (await ann.http.post("create_sampling_session", json=sampler)).json()["sampling_session_id"]
    target = {"type": "sampling_session", "sampling_session_id": sampler_id}
    polls = [
        asyncio.create_task(retrieve(ann, request_id)),
        asyncio.create_task(ann.http.post("retrieve_futures", json={"target": target, "prev_cursor": 0})),
    ]
    await asyncio.wait(polls, timeout=0.1)

    context.polls.end()
    one, many = await asyncio.gather(*polls)

    assert (one.status_code, one.json()["type"]) == (408, "try_again")
    assert (many.status_code, many.json()) == (200, {"completions": [], "cursor": 0})
    served.backend.let_go("optim_step")


async def test_a_journal_that_takes_nothing_is_told_so_that_clients_come_back(
    context: Context, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await ann.run()

    async def stalled(*_: object) -> str:
        raise Stalled("the disk is full")

    monkeypatch.setattr(context.engine.training, "optim_step", stalled)

    answer = await ann.http.post("optim_step", json=step(run_id, 7))

    assert refusal(answer, 503) == "the disk is full"
    assert answer.headers["retry-after"] == "5"


async def test_a_load_that_is_repeated_needs_its_source_no_more(ann: User) -> None:
    run_id = await ann.run()
    path = await ann.save(run_id, "final")
    body = {"model_id": run_id, "seq_id": 9, "path": path, "optimizer": True}
    session_id = await ann.session()
    creation = {"session_id": session_id, "model_seq_id": 0, "path": path, "optimizer": True}
    into, anew = [(await ann.http.post("load_weights", json=each)).json() for each in (body, creation)]
    for each in (into, anew):
        assert "error" not in (await retrieve(ann, each["request_id"])).json()
    await ann.http.delete(f"training_runs/{run_id}/checkpoints/weights/final")

    again = [await ann.http.post("load_weights", json=each) for each in (body, creation)]

    assert [each.json() for each in again] == [into, anew]
    assert (into["request_id"], anew["request_id"]) == (f"{run_id}:9", f"{session_id}:train:0:0")
    refusal(await ann.http.post("load_weights", json={**body, "seq_id": 10}), 404)


async def test_a_loss_that_is_uploaded_again_gets_its_first_answer(ann: User) -> None:
    session_id = await ann.session()
    body = {"session_id": session_id, "custom_loss_seq_id": 3, **LOSS}

    first, again = [(await ann.http.post("create_custom_loss", json=body)).json() for _ in range(2)]

    assert first == again
    assert first["request_id"] == f"{session_id}:loss:3"
