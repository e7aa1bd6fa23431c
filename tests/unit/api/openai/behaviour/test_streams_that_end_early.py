"""Streams whose client leaves, or whose sample fails, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from chockstone.wire.failures import ServerFailure
from support.api.loopback_server import serving
from support.api.users import KEYS, MODEL
from support.chat import written
from support.engine.making import until
from support.served import Served

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"model": MODEL, "prompt": "Hi"},
    "responses": {"model": MODEL, "input": "Hi"},
}


@pytest.fixture
async def connected(served: Served, models: dict[str, Path]) -> AsyncIterator[httpx.AsyncClient]:
    served.backend.sequences = written(models[MODEL], "a long answer with many tokens")
    async with serving(uvicorn.Config(served.app, log_config=None, lifespan="off")) as port:
        headers = {"X-API-Key": KEYS["ann"]}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/v1/", headers=headers, timeout=60, trust_env=False
        ) as client:
            yield client
    served.backend.let_everything_go()
    served.app.state.chat.tokenizers.close()


@pytest.mark.parametrize("route", BODIES)
async def test_a_client_that_leaves_a_stream_frees_its_place(
    served: Served, connected: httpx.AsyncClient, route: str
) -> None:
    served.backend.hold("token 2")
    async with connected.stream("POST", route, json={**BODIES[route], "stream": True}) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_raw())
        assert served.engine.sampling.waiting == 1

    await until(lambda: "cancel" in served.backend.words())


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_before_the_answer_frees_its_place(
    served: Served, connected: httpx.AsyncClient, route: str, is_streamed: bool
) -> None:
    served.backend.hold("token 0")
    asking = asyncio.create_task(connected.post(route, json={**BODIES[route], "stream": is_streamed}))
    await until(lambda: served.engine.sampling.waiting == 1)

    asking.cancel()

    await until(lambda: "cancel" in served.backend.words())


@pytest.mark.parametrize("route", BODIES)
async def test_a_sample_that_fails_in_a_stream_ends_it_with_the_error(
    served: Served, connected: httpx.AsyncClient, route: str
) -> None:
    served.backend.hold("token 2")
    async with connected.stream("POST", route, json={**BODIES[route], "stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        [request] = served.engine.sampling.queues(None)
        served.backend.fail_next("token 2", ServerFailure("the disk is full"))
        served.backend.let_go("token 2")
        rest = [line async for line in lines if line.startswith("data: ")]

    assert request == ""
    last = json.loads(rest[-1].removeprefix("data: "))
    error = last["response"]["error"] if route == "responses" else last["error"]
    assert "the disk is full" in error["message"]
