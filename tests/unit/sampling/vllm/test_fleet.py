from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from chockstone.sampling.vllm import completion_request, connection
from chockstone.sampling.vllm import fleet as fleet_module
from chockstone.sampling.vllm import server as server_module
from chockstone.sampling.vllm.fleet import Fleet
from chockstone.sampling.vllm.server import Misfit
from chockstone.wire.codecs.samples import SampleRequest, SampleResult
from chockstone.wire.failures import ServerFailure
from support.vllm.making import FACTS, adapter, fleet, request
from support.vllm.stub import EOS, MODEL, Stub, logprobs_after, running


async def sample(servers: Fleet, asked: SampleRequest, number: int | None = None, *, seed: int = 0) -> SampleResult:
    result = await servers.sample(asked, MODEL, None if number is None else adapter(number), seed=seed)
    assert result is not None
    return result


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


async def until(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


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


async def test_the_prompt_is_scored_from_its_second_token_on(stub: Stub) -> None:
    async with fleet(stub) as servers:
        whole = await sample(servers, request((5, 6, 7, 8), prompt_logprobs=True, topk_prompt_logprobs=2))
        last = await sample(servers, request((5, 6, 7, 8), prompt_logprobs=True, prompt_logprobs_last_n=1))

    assert whole.prompt_logprobs is not None and whole.topk_prompt_logprobs is not None
    expected = [logprobs_after(5)[6], logprobs_after(6)[7], logprobs_after(7)[8]]
    np.testing.assert_allclose(whole.prompt_logprobs, [np.nan, *expected], rtol=1e-6)
    assert whole.topk_prompt_logprobs.tokens[1].tolist() == np.argsort(-logprobs_after(5))[:2].tolist()
    assert whole.topk_prompt_logprobs.logprobs[0].tolist() == [-99999.0, -99999.0]
    assert last.prompt_logprobs is not None
    np.testing.assert_allclose(last.prompt_logprobs, [np.nan, np.nan, np.nan, expected[2]], rtol=1e-6)
    assert whole.prompt_cache_hit_tokens == 2


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


async def test_a_server_that_was_restarted_unnoticed_loads_its_adapter_again(stub: Stub) -> None:
    async with fleet(stub) as servers:
        before = await sample(servers, request(), 1)
        stub.adapters.clear()

        after = await sample(servers, request(), 1)

    assert tokens_of(after) == tokens_of(before)
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


async def test_a_server_with_too_much_to_do_is_asked_again(stub: Stub) -> None:
    stub.fails, stub.failure = 4, 429
    async with fleet(stub) as servers:
        await sample(servers, request())

    assert len(stub.requests) == 5


async def test_nobody_waits_for_ever(stub: Stub) -> None:
    async with fleet(stub, patience_seconds=0.2) as servers:
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
        with pytest.raises(Misfit, match=message):
            async with fleet(stub):
                pass


@pytest.mark.parametrize("cards", [["tiny"], None, [{"id": MODEL}], [{"id": MODEL, "max_model_len": "long"}]])
async def test_a_server_that_is_something_else_is_known_at_the_start(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, cards: Any
) -> None:
    async def answer(*_: Any) -> web.Response:
        return web.json_response({"data": cards})

    await stub.die()
    monkeypatch.setattr(stub, "_models", answer)
    await stub.start()

    with pytest.raises(Misfit, match="does not list models as vLLM does"):
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
    with pytest.raises(Misfit, match="--logprobs-mode raw_logprobs"):
        async with fleet(stub):
            pass


async def test_the_key_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    stub = Stub(key="secret")
    async with running(stub), fleet(stub) as servers:
        await sample(servers, request())


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


async def test_a_server_that_cannot_see_the_adapters_is_known_at_the_start(stub: Stub) -> None:
    stub.refuses_adapters = True
    with pytest.raises(Misfit, match="cannot load an adapter from.*under this very path"):
        async with fleet(stub):
            pass


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        ({"logprobs": None}, "TypeError"),
        ({"token_ids": []}, "0 tokens and"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "TypeError"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [-1.0, -1.0]}}, "1 tokens and 2 logprobs"),
        ({"token_ids": [1] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "9 tokens and 9 logprobs, where 8"),
        ({"token_ids": [50], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
        ({"token_ids": [2**40], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
        ({"token_ids": [1.5], "logprobs": {"token_logprobs": [-1.0]}}, "a token that the model does not have"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_asked_for_elsewhere(
    stub: Stub, other: Stub, monkeypatch: pytest.MonkeyPatch, nonsense: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(fleet_module, "_LARGE_TOKENS", 1)  # it is read in a thread
    async with fleet(stub, other) as servers:
        stub.nonsense = nonsense
        await sample(servers, request())
        other.nonsense = nonsense
        with pytest.raises(ServerFailure, match=f"does not answer as vLLM does: {message}"):
            await sample(servers, request())


async def test_a_sample_that_the_server_ended_early_is_asked_for_again(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, times = Stub._choice, iter([True])
    async with fleet(stub) as servers:
        monkeypatch.setattr(
            Stub, "_choice", lambda *given: whole(*given) | ({"finish_reason": "abort"} if next(times, False) else {})
        )

        result = await sample(servers, request())

    assert len(result.sequences) == 1
    assert len(stub.requests) == 2
