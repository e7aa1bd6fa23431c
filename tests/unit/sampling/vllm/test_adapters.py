from __future__ import annotations

import asyncio

from support.vllm.making import fleet, request, sample, tokens_of, until
from support.vllm.stub import Stub


async def test_a_server_that_was_restarted_unnoticed_loads_its_adapter_again(stub: Stub) -> None:
    async with fleet(stub) as servers:
        before = await sample(servers, request(), 1)
        stub.adapters.clear()

        after = await sample(servers, request(), 1)

    assert tokens_of(after) == tokens_of(before)
    assert stub.calls == [("load", "chockstone-1")] * 2


async def test_an_adapter_is_loaded_once_for_all_who_need_it(stub: Stub) -> None:
    async with fleet(stub) as servers:
        await asyncio.gather(*(sample(servers, request(), 1, seed=seed) for seed in range(8)))

    assert stub.calls == [("load", "chockstone-1")]


async def test_the_adapter_that_was_unused_for_longest_makes_room(stub: Stub) -> None:
    async with fleet(stub, most_adapters=2) as servers:
        for number in (1, 2, 1, 3, 1, 2):
            await sample(servers, request(), number)

    words = [f"{word} {name[-1]}" for word, name in stub.calls]
    assert words == ["load 1", "load 2", "unload 2", "load 3", "unload 3", "load 2"]


async def test_an_adapter_in_use_stays(stub: Stub) -> None:
    stub.gate.clear()
    async with fleet(stub, most_adapters=1) as servers:
        tasks = [asyncio.create_task(sample(servers, request(), number)) for number in (1, 2)]
        await until(lambda: len(stub.requests) == 2)
        assert [word for word, _ in stub.calls] == ["load", "load"]
        stub.gate.set()
        await asyncio.gather(*tasks)

        await sample(servers, request(), 3)

    assert set(stub.adapters) == {"chockstone-3"}


async def test_an_adapter_that_is_needed_while_it_leaves_is_loaded_again(stub: Stub) -> None:
    async with fleet(stub) as servers:
        await sample(servers, request(), 1)
        leaving = asyncio.create_task(servers.unload("chockstone-1"))
        await asyncio.sleep(0)

        await sample(servers, request(), 1)
        await leaving

    assert [word for word, _ in stub.calls] == ["load", "unload", "load"]


async def test_an_adapter_that_leaves_while_it_is_loaded_does_leave(stub: Stub) -> None:
    async with fleet(stub) as servers:
        stub.loads.clear()
        sampling = asyncio.create_task(sample(servers, request(), 1))
        await until(lambda: any(server.adapters.names for server in servers._servers))
        leaving = [asyncio.create_task(servers.unload("chockstone-1")) for _ in range(2)]
        await asyncio.sleep(0.05)
        sampling.cancel()
        stub.loads.set()
        await asyncio.gather(*leaving)

        assert stub.adapters == {}
