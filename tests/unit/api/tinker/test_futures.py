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
from chockstone.wire.failures import ServerFailure
from support.api.users import User, refusal
from support.served import Served, serve_in_process


@asynccontextmanager
async def server(home: Path, models: dict[str, Path]) -> AsyncIterator[tuple[Served, User]]:
    async with serve_in_process(home, models, rules=StorageRules(reserve_bytes=0)) as served:
        yield served, User("local", served.http)


def step(run_id: str, seq_id: int) -> dict[str, Any]:
    return {"model_id": run_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-4}}


async def retrieve(user: User, request_id: str) -> httpx.Response:
    return await user.http.post("retrieve_future", json={"request_id": request_id})


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
    cursor = (await ann.http.post("retrieve_futures", json={"target": target, "prev_cursor": 0})).json()["cursor"]
    polls = [
        asyncio.create_task(retrieve(ann, request_id)),
        asyncio.create_task(ann.http.post("retrieve_futures", json={"target": target, "prev_cursor": cursor})),
    ]
    await asyncio.wait(polls, timeout=0.1)

    context.polls.end()
    one, many = await asyncio.gather(*polls)

    assert (one.status_code, one.json()["type"]) == (408, "try_again")
    assert (many.status_code, many.json()) == (200, {"completions": [], "cursor": cursor})
    served.backend.let_go("optim_step")
