from __future__ import annotations

from typing import Any

import httpx
import pytest

from chockstone.api.context import Context
from support.api.users import User, refusal


def step(run_id: str, seq_id: int) -> dict[str, Any]:
    return {"model_id": run_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-4}}


async def retrieve(user: User, request_id: str) -> httpx.Response:
    return await user.http.post("retrieve_future", json={"request_id": request_id})


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
