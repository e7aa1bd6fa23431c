from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chockstone.sampling.vllm import connection
from chockstone.sampling.vllm import server as server_module
from chockstone.sampling.vllm.fleet import Fleet
from chockstone.sampling.vllm.server import VllmUnusable
from support.vllm.making import FACTS, fleet, request, sample, until
from support.vllm.stub import MODEL, Stub, running


async def test_no_more_than_a_server_can_take_are_asked_at_once(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_AT_ONCE", 2)
    stub.gate.clear()
    async with fleet(stub) as servers:
        tasks = [asyncio.create_task(sample(servers, request(), 1, seed=seed)) for seed in range(5)]
        await until(lambda: len(stub.requests) == 2)
        await asyncio.sleep(0.05)
        asked = len(stub.requests)
        stub.gate.set()
        await asyncio.gather(*tasks)

    assert (asked, len(stub.requests)) == (2, 5)


async def test_what_an_earlier_life_left_loaded_is_unloaded_and_what_is_others_stays(
    stub: Stub, tmp_path: Path
) -> None:
    stub.adapters = {"chockstone-old": f"{tmp_path}/old", "theirs": "/elsewhere/theirs"}

    made = Fleet([stub.url], {MODEL: FACTS}, directory=tmp_path, most_adapters=1)
    await made.start()
    await made.close()

    assert set(stub.adapters) == {"theirs"}


@pytest.mark.parametrize(
    ("stub", "message"),
    [
        (Stub(models=("big", "large")), "serves 'big', 'large', and this server 'tiny'.*--served-model-name"),
        (Stub(takes_adapters=False), "takes no adapters.*VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (Stub(key="secret"), "401.*VLLM_API_KEY"),
    ],
    ids=["other models", "no adapters", "no key"],
)
async def test_a_server_that_cannot_be_used_is_known_at_the_start(stub: Stub, message: str) -> None:
    async with running(stub):
        with pytest.raises(VllmUnusable, match=message):
            async with fleet(stub):
                pass


async def test_a_server_is_watched_whatever_it_does(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stumble(*_: Any) -> None:
        raise RuntimeError("what nobody thought of")

    async with fleet(stub) as servers:
        with monkeypatch.context() as trouble:
            trouble.setattr(connection.Connection, "check_health", stumble)
            await until(lambda: not servers._servers[0].is_up)

        await sample(servers, request())


async def test_logits_are_not_taken_for_logprobs(stub: Stub) -> None:
    stub.offset = 100.0
    with pytest.raises(VllmUnusable, match="--logprobs-mode raw_logprobs"):
        async with fleet(stub):
            pass


async def test_a_server_that_cannot_see_the_adapters_is_known_at_the_start(stub: Stub) -> None:
    stub.refuses_adapters = True
    with pytest.raises(VllmUnusable, match="cannot load an adapter from.*under this very path"):
        async with fleet(stub):
            pass
