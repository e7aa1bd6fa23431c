from __future__ import annotations

import asyncio

from chockstone.api.context import Context
from chockstone.engine.samples.requests import SamplerSource
from support.api.users import MODEL, User, refusal
from support.served import Served


async def sampler(user: User, session_id: str, number: int) -> str:
    body = {"session_id": session_id, "sampling_session_seq_id": number, "base_model": MODEL}
    answer = await user.http.post("create_sampling_session", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["sampling_session_id"])


async def test_sampling_sessions_are_listed_with_their_load(
    served: Served, context: Context, ann: User, bob: User, root: User
) -> None:
    session = await ann.session()
    samplers = [await sampler(ann, session, number) for number in range(3)]
    theirs = await sampler(bob, await bob.session(), 0)
    sampling = served.engine.sampling
    source = SamplerSource(samplers[0], "ann", MODEL, None)
    done = await sampling.submit(source, 0, b"prompt", num_samples=1)
    promise = served.engine.futures.get(done.request_id)
    assert promise is not None and await promise.wait(30) is not None
    served.backend.hold("sample")
    await sampling.submit(source, 1, b"prompt", num_samples=1)
    while sampling.queues("ann")[samplers[0]].running != 1:
        await asyncio.sleep(0.001)

    own = (await ann.http.get("samplers")).json()
    pages = [(await ann.http.get("samplers", params={"limit": 2})).json()]
    pages.append((await ann.http.get("samplers", params={"limit": 2, "cursor": pages[0]["cursor"]})).json())
    everyones = (await root.http.get("samplers")).json()
    served.backend.let_go("sample")

    assert [each["sampling_session_id"] for each in own["samplers"]] == samplers[::-1]
    load = own["samplers"][-1]
    assert (load["queued"], load["running"], load["requests"], load["tokens"], load["prompt_tokens"]) == (0, 1, 1, 1, 6)
    assert (own["queued"], own["running"]) == (0, 1) and own["tokens_per_second"] > 0
    assert load["is_anonymous"] is False and load["last_used_at"]
    assert [each["sampling_session_id"] for page in pages for each in page["samplers"]] == samplers[::-1]
    assert "cursor" not in pages[1]
    assert theirs in [each["sampling_session_id"] for each in everyones["samplers"]]
    assert [each["owner"] for each in (await bob.http.get("samplers")).json()["samplers"]] == ["bob"]
    refusal(await ann.http.get("samplers", params={"owner": "bob"}), 403)


async def test_samplers_of_a_finished_session_are_not_listed(ann: User) -> None:
    session = await ann.session()
    await sampler(ann, session, 0)
    finished = await ann.http.post(f"sessions/{session}/finish", json={"reason": {"type": "success"}})
    assert finished.status_code == 204, finished.text

    assert (await ann.http.get("samplers")).json()["samplers"] == []
