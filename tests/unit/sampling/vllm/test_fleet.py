from __future__ import annotations

import asyncio

import numpy as np
import pytest

from chockstone.sampling.vllm import completion_request, connection
from chockstone.wire.failures import ServerFailure
from support.vllm.making import fleet, request, sample, tokens_of, until
from support.vllm.stub import EOS, MODEL, Stub, logprobs_after, running


@pytest.mark.parametrize(("is_tempered", "temperature"), [(False, 1.0), (True, 1.0), (True, 0.5), (False, 0.0)])
async def test_logprobs_are_those_of_the_model_at_the_temperature(is_tempered: bool, temperature: float) -> None:
    stub = Stub(is_tempered=is_tempered)
    async with running(stub), fleet(stub) as servers:
        result = await sample(servers, request(samples=3, temperature=temperature, topk_sample_logprobs=4), 1)

    assert len(result.sequences) == 3
    for sequence in result.sequences:
        assert sequence.topk is not None
        before = [7, *sequence.tokens[:-1].tolist()]
        for row, last in enumerate(before):
            expected = logprobs_after(last, "chockstone-1", temperature=temperature or 1.0)
            best = np.argsort(-expected)[:4]
            np.testing.assert_allclose(sequence.logprobs[row], expected[sequence.tokens[row]], rtol=1e-6)
            assert sequence.topk.tokens[row].tolist() == best.tolist()
            np.testing.assert_allclose(sequence.topk.logprobs[row], expected[best], rtol=1e-6)


async def test_a_sample_ends_with_its_stop_token_or_at_its_length(stub: Stub) -> None:
    async with fleet(stub) as servers:
        results = [await sample(servers, request(max_tokens=60), seed=seed) for seed in range(30)]

    sequences = [sequence for result in results for sequence in result.sequences]
    assert {sequence.stop_reason for sequence in sequences} == {"stop", "length"}
    for sequence in sequences:
        assert (sequence.tokens == EOS).sum() == (sequence.stop_reason == "stop")
        assert sequence.stop_reason == "length" or sequence.tokens[-1] == EOS


async def test_the_same_seed_gives_the_same_samples_also_in_parts(
    stub: Stub, other: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(samples=12, prompt_logprobs=True)
    async with fleet(stub, other) as servers:
        whole = await sample(servers, asked, seed=9)
        monkeypatch.setattr(completion_request, "_ANSWER_CELLS", 40)
        parts = await sample(servers, asked, seed=9)
        different = await sample(servers, asked, seed=8)

    assert tokens_of(parts) == tokens_of(whole) != tokens_of(different)
    assert parts.prompt_logprobs is not None and whole.prompt_logprobs is not None
    np.testing.assert_array_equal(parts.prompt_logprobs, whole.prompt_logprobs)
    assert stub.requests and other.requests


async def test_the_least_busy_server_is_asked_first(stub: Stub, other: Stub) -> None:
    for each in (stub, other):
        each.gate.clear()
    async with fleet(stub, other) as servers:
        large = asyncio.create_task(sample(servers, request(samples=5)))
        await until(lambda: stub.requests or other.requests)
        small = [asyncio.create_task(sample(servers, request())) for _ in range(5)]
        await until(lambda: len(stub.requests) + len(other.requests) == 6)

        counts = sorted(len(each.requests) for each in (stub, other))
        for each in (stub, other):
            each.gate.set()
        await asyncio.gather(large, *small)

    assert counts == [1, 5]


async def test_what_a_dying_server_had_is_done_by_another(stub: Stub, other: Stub) -> None:
    stub.gate.clear()
    other.gate.clear()
    async with fleet(stub, other) as servers:
        tasks = [asyncio.create_task(sample(servers, request(), seed=seed)) for seed in range(6)]
        await until(lambda: len(stub.requests) == len(other.requests) == 3)
        other.gate.set()
        await stub.die()

        results = await asyncio.gather(*tasks)
        alone = [await sample(servers, request(), seed=seed) for seed in range(6)]

    assert [tokens_of(result) for result in results] == [tokens_of(result) for result in alone]


async def test_samples_wait_for_a_server_that_comes_back_and_has_forgotten_its_adapters(stub: Stub) -> None:
    async with fleet(stub) as servers:
        before = await sample(servers, request(), 1)
        await stub.die()
        waiting = asyncio.create_task(sample(servers, request(), 1))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await stub.start()

        assert tokens_of(await waiting) == tokens_of(before)
    assert stub.calls == [("load", "chockstone-1")] * 2


async def test_a_server_that_hangs_loses_its_samples_to_another(
    stub: Stub, other: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.2)
    stub.gate.clear()
    other.gate.clear()
    async with fleet(stub, other) as servers:
        tasks = [asyncio.create_task(sample(servers, request())) for _ in range(2)]
        await until(lambda: stub.requests and other.requests)
        other.gate.set()
        stub.hangs = True

        await asyncio.gather(*tasks)

    assert len(other.requests) == 2


async def test_a_sample_that_fails_everywhere_is_given_up(stub: Stub) -> None:
    stub.fails = 100
    async with fleet(stub) as servers:
        with pytest.raises(ServerFailure, match="failed 3 times on vLLM.*EngineCore encountered"):
            await sample(servers, request())

        stub.fails = 1
        await sample(servers, request())


async def test_nobody_waits_for_ever(stub: Stub) -> None:
    async with fleet(stub, wait_seconds=0.2) as servers:
        await stub.die()
        with pytest.raises(ServerFailure, match="no vLLM server has been there for 'tiny'.*cannot be reached"):
            await sample(servers, request())


async def test_a_cancelled_sample_is_stopped_on_its_server(stub: Stub) -> None:
    stub.gate.clear()
    async with fleet(stub) as servers:
        waiting = asyncio.create_task(sample(servers, request()))
        await until(lambda: stub.requests)
        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: stub.aborted == 1)


async def test_an_adapter_that_the_server_will_not_have_fails_the_sample_with_its_reason(stub: Stub) -> None:
    async with fleet(stub) as servers:
        stub.refuses_adapters = True
        with pytest.raises(ServerFailure, match="rank 64 is greater.*--max-lora-rank"):
            await sample(servers, request(), 1)
        stub.refuses_adapters = False

        await sample(servers, request(), 1)


@pytest.mark.parametrize("health", [200, 503], ids=["it will not", "it dies of it"])
async def test_what_one_server_will_not_load_another_may(stub: Stub, other: Stub, health: int) -> None:
    async with fleet(stub, other) as servers:
        stub.refuses_adapters, stub.health = True, health

        for seed in range(3):
            await sample(servers, request(), 1, seed=seed)

    assert (len(stub.requests), len(other.requests)) == (0, 3)


async def test_a_server_that_is_not_there_yet_is_waited_for(stub: Stub) -> None:
    await stub.die()
    async with fleet(stub) as servers:
        asking = asyncio.create_task(sample(servers, request()))
        await asyncio.sleep(0.05)
        assert not asking.done()
        await stub.start()

        await asking


async def test_requests_go_to_the_servers_that_give_their_logprobs() -> None:
    raw, tempered = Stub(), Stub(is_tempered=True)
    async with running(raw, tempered), fleet(raw, tempered) as servers:
        for _ in range(4):
            await sample(servers, request(temperature=0.5))
            await sample(servers, request(top_k=3))
        by_none = await servers.sample(request(temperature=0.5, top_k=3), MODEL, None, seed=0)

    assert {body["temperature"] for body in tempered.requests} == {0.5}
    assert {body["top_k"] for body in raw.requests} == {3}
    assert by_none is None


async def test_nobody_waits_for_what_a_server_that_is_back_does_not_give_any_more(stub: Stub) -> None:
    async with fleet(stub) as servers:
        await stub.die()
        waiting = asyncio.create_task(servers.sample(request(top_k=3), MODEL, None, seed=0))
        await asyncio.sleep(0.05)
        stub.is_tempered = True
        await stub.start()

        assert await waiting is None
