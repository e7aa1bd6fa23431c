"""What clients meet when a server was restarted, is about to end, or cannot go on for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from chockstone.engine.config import StorageRules
from support.api.users import User
from support.served import Served, serve_in_process


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
