from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import SessionQuery, SessionRow
from chockstone.console.playground.sampling import (
    PlaygroundSampling,
    Sampled,
    SampleEvent,
    SampleOrder,
    SampleRefused,
    SampleWaiting,
)
from chockstone.wire.failures import BadRequest
from support.api.users import MODEL, User
from support.sampled import DrawnSamples
from support.served import Served

ANN = Caller("ann")


@pytest.fixture
def drawn(served: Served, monkeypatch: pytest.MonkeyPatch) -> DrawnSamples:
    made = DrawnSamples([5, 6, 7])
    monkeypatch.setattr(served.backend, "sample", made.sample)
    monkeypatch.setattr(served.backend, "cancel", made.cancel)
    return made


async def sessions(context: Context) -> list[SessionRow]:
    page = await context.catalog.sessions.search(SessionQuery(owners=["ann"]), now=context.now())
    return [summary.session for summary in page.sessions]


async def last(events: AsyncIterator[SampleEvent]) -> SampleEvent:
    found: list[SampleEvent] = [event async for event in events]
    return found[-1]


async def test_a_sample_takes_the_engines_path_in_a_session_that_is_finished_after_it(
    context: Context, drawn: DrawnSamples
) -> None:
    drawn.gate.set()
    order = SampleOrder((1, 2, 3), base_model=MODEL, max_tokens=9, temperature=0.5, top_p=0.9, seed=4, stop=("x",))

    result = await last(PlaygroundSampling(context).sample(ANN, order))

    assert isinstance(result, Sampled)
    assert [each.token for each in result.tokens] == [5, 6, 7]
    assert result.stop_reason == "length"
    assert [each.alternatives[0] for each in result.tokens] == [(0, -1.0)] * 3
    [call] = drawn.calls
    assert call["prompt"] == {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    assert call["sampling_params"] == {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 4, "stop": ["x"]}
    [session] = await sessions(context)
    assert (session.finish_reason, list(session.tags)) == ("success", ["playground"])


async def test_leaving_cancels_the_sample_and_finishes_its_session(context: Context, drawn: DrawnSamples) -> None:
    events = PlaygroundSampling(context).sample(ANN, SampleOrder((1,), base_model=MODEL))

    async with aclosing(events):
        assert await anext(events) == SampleWaiting(None)

    while not drawn.cancelled:  # in the background
        await asyncio.sleep(0)
    [session] = await sessions(context)
    assert session.finish_reason == "interrupted"
    assert drawn.cancelled == [f"{session.session_id}:sample:0:1"]
    drawn.gate.set()
    await context.engine.sampling.drained()
    assert context.engine.sampling.waiting == 0


async def test_a_cancelled_request_leaves_nothing_behind(context: Context, drawn: DrawnSamples) -> None:
    playground = PlaygroundSampling(context)
    waiting = asyncio.Event()

    async def follow() -> None:
        async for _ in playground.sample(ANN, SampleOrder((1,), base_model=MODEL)):
            waiting.set()

    task = asyncio.create_task(follow())
    await waiting.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    drawn.gate.set()
    await context.engine.sampling.drained()
    assert [session.finish_reason for session in await sessions(context)] == ["interrupted"]


async def test_a_failure_of_the_worker_is_told(context: Context, drawn: DrawnSamples) -> None:
    drawn.gate.set()
    drawn.error = BadRequest("a prompt of 900 tokens does not fit")

    result = await last(PlaygroundSampling(context).sample(ANN, SampleOrder((1,), base_model=MODEL)))

    assert result == SampleRefused("a prompt of 900 tokens does not fit")


async def test_only_what_the_user_may_read_is_sampled_from(
    context: Context, users: dict[str, User], drawn: DrawnSamples
) -> None:
    theirs = await users["bob"].save(await users["bob"].run(), "a", kind="sampler_weights")

    refused = await last(PlaygroundSampling(context).sample(ANN, SampleOrder((1,), model_path=theirs)))
    unknown = await last(PlaygroundSampling(context).sample(ANN, SampleOrder((1,), base_model="gpt-99")))

    assert isinstance(refused, SampleRefused)
    assert "not yours or not there" in refused.error
    assert isinstance(unknown, SampleRefused)
    assert "is not served here" in unknown.error
    assert drawn.calls == []
    assert {session.finish_reason for session in await sessions(context)} == {"errored"}


async def test_a_sample_of_a_checkpoint_is_in_the_audit_of_its_owner(
    context: Context, users: dict[str, User], drawn: DrawnSamples
) -> None:
    drawn.gate.set()
    path = await users["ann"].save(await users["ann"].run(), "a", kind="sampler_weights")

    await last(PlaygroundSampling(context).sample(ANN, SampleOrder((1,), model_path=path)))

    await context.engine.audit.flush()
    rows = await context.catalog.audit.list("ann", prefix="checkpoint_read")
    assert [(row.path, row.purpose) for row in rows] == [(path, "sample")]


async def test_the_usual_limits_of_samples_apply(
    context: Context, drawn: DrawnSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.engine.sampling._queued, "has_room", lambda owner, count: False)

    refused = await last(PlaygroundSampling(context).sample(ANN, SampleOrder((1,), base_model=MODEL)))

    assert isinstance(refused, SampleRefused)
    assert "queued" in refused.error
