from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from chockstone.sampling.vllm.connection import VllmRefused, has_no_output_layer, is_loaded_already
from chockstone.sampling.vllm.server import VllmUnusable
from support.vllm.making import fleet, request, sample
from support.vllm.stub import MODEL, Stub, running


async def test_a_server_with_too_much_to_do_is_asked_again(stub: Stub) -> None:
    stub.fails, stub.failure = 4, 429
    async with fleet(stub) as servers:
        await sample(servers, request())

    assert len(stub.requests) == 5


@pytest.mark.parametrize("cards", [["tiny"], None, [{"id": MODEL}], [{"id": MODEL, "max_model_len": "long"}]])
async def test_a_server_that_is_something_else_is_known_at_the_start(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, cards: Any
) -> None:
    async def answer(*_: Any) -> web.Response:
        return web.json_response({"data": cards})

    await stub.die()
    monkeypatch.setattr(stub, "_models", answer)
    await stub.start()

    with pytest.raises(VllmUnusable, match="does not list models as vLLM does"):
        async with fleet(stub):
            pass


async def test_the_key_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    stub = Stub(key="secret")
    async with running(stub), fleet(stub) as servers:
        await sample(servers, request())


def test_what_vllm_says_only_in_words_is_recognised() -> None:
    loaded = "The lora adapter 'chockstone-1' has already been loaded."
    headless = "While loading /x, expected target modules in {'q_proj'} but received ['lm_head']."

    assert is_loaded_already(VllmRefused(loaded, status=400))
    assert has_no_output_layer(VllmRefused(headless, status=400))
    assert not is_loaded_already(VllmRefused(headless, status=400))
    assert not has_no_output_layer(VllmRefused(loaded, status=400))
