from __future__ import annotations

from support.vllm.making import adapter, fleet, request
from support.vllm.stub import MODEL, Stub, running


async def test_a_server_shows_what_it_does_with_output_layers() -> None:
    with_head, without = Stub(has_head=True), Stub()
    headless, headed = adapter(1), adapter(2, has_head=True)
    async with running(with_head, without), fleet(with_head, without) as servers:
        for _ in range(3):
            await servers.sample(request(prompt_logprobs=True), MODEL, headless, seed=0)
            await servers.sample(request(), MODEL, headed, seed=0)
        by_none = await servers.sample(request(prompt_logprobs=True), MODEL, headed, seed=0)

    assert {body["model"] for body in with_head.requests} == {"chockstone-2"}
    assert {body["model"] for body in without.requests} == {"chockstone-1"}
    assert by_none is None
