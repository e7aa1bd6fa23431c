from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.engine.samples.requests import SamplerSource
from support.api.users import MODEL, User, refusal, url_of
from support.engine.gap_meter import SERVER, ScriptedGapMeter, measured, unmeasured
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


async def checked(user: User, name: str) -> dict[str, Any]:
    answer = await user.http.post("samplers/check", json={"sampler": name})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("gap_meter", [ScriptedGapMeter(measured(0.002, 0.01))])
async def test_a_check_answers_with_the_gap_and_lists_show_it(ann: User, gap_meter: ScriptedGapMeter) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")
    session = await ann.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
    by_path = (await ann.http.post("create_sampling_session", json=body)).json()["sampling_session_id"]
    by_model = await sampler(ann, session, 1)
    before = (await ann.http.get("samplers")).json()

    of_path, of_session, of_model = [await checked(ann, name) for name in (path, by_path, by_model)]

    assert [each["gaps"] for each in before["samplers"]] == [[], []] and before["gap_limit"] == 0.1
    [gap] = of_path["gaps"]
    assert gap.pop("measured_at")
    assert gap == {"server": SERVER, "mean": 0.002, "largest": 0.01, "tokens": 128, "is_within_limit": True}
    assert (of_path["tinker_path"], of_path["gap_limit"], of_path["served_by"]) == (path, 0.1, "vllm")
    assert of_session["tinker_path"] == path and "tinker_path" not in of_model
    assert [weights.archive is None for weights in gap_meter.asked] == [False, False, True]
    listed = (await ann.http.get("samplers")).json()["samplers"]
    assert [[gap["mean"] for gap in each["gaps"]] for each in listed] == [[0.002], [0.002]]
    [shown] = (await ann.http.get("checkpoints")).json()["checkpoints"]
    [searched] = (await ann.http.post("checkpoints/search", json={})).json()["checkpoints"]
    assert [each["sampler_gap"] for each in (shown, searched, await ann.entry(path))] == [0.002] * 3


AWAY = unmeasured("the server is not used", was_asked=False)


@pytest.mark.parametrize(
    ("gap_meter", "verdicts", "served_by"),
    [
        (ScriptedGapMeter(measured(0.2)), [False], "worker"),
        (ScriptedGapMeter(measured(0.1)), [True], "vllm"),
        (ScriptedGapMeter(measured(0.2), measured(0.01, server="http://two")), [False, True], "vllm"),
        (ScriptedGapMeter(unmeasured("NaN")), [False], "worker"),
        (ScriptedGapMeter(AWAY), [False], None),
        (ScriptedGapMeter(measured(0.2), AWAY), [False, False], "worker"),
        (ScriptedGapMeter(measured(0.2), limit=None), [None], "vllm"),
        (ScriptedGapMeter(unmeasured("NaN"), limit=None), [None], "vllm"),
        (ScriptedGapMeter(AWAY, limit=None), [None], None),
    ],
)
async def test_the_verdict_says_who_samples(
    ann: User, gap_meter: ScriptedGapMeter, verdicts: list[bool | None], served_by: str | None
) -> None:
    answer = await checked(ann, await sampler(ann, await ann.session(), 0))

    assert [each.get("is_within_limit") for each in answer["gaps"]] == verdicts
    assert answer.get("served_by") == served_by
    assert answer.get("gap_limit") == gap_meter.gap_limit


@pytest.mark.parametrize("gap_meter", [ScriptedGapMeter()])
async def test_a_second_check_of_a_user_is_for_later(ann: User, gap_meter: ScriptedGapMeter) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")
    by_model = await sampler(ann, await ann.session(), 0)
    gap_meter.gate.clear()
    first = asyncio.create_task(checked(ann, path))
    async with asyncio.timeout(30):
        while not gap_meter.asked:
            await asyncio.sleep(0.001)

    answer = await ann.http.post("samplers/check", json={"sampler": by_model})
    gap_meter.gate.set()

    assert "check one at a time" in refusal(answer, 429) and answer.headers["Retry-After"] == "1"
    assert (await first)["served_by"] == "vllm"
    assert (await checked(ann, by_model))["served_by"] == "vllm"


@pytest.mark.parametrize("gap_meter", [ScriptedGapMeter()])
async def test_another_users_samplers_and_what_is_no_sampler_are_refused(
    ann: User, bob: User, gap_meter: ScriptedGapMeter
) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")
    theirs = await sampler(ann, await ann.session(), 0)

    for name, code in (
        *((path, 404), (theirs, 404), ("nothing", 404)),
        *(("tinker://r/external_weights/a", 400), ("tinker://r/a", 400), ("a\0", 400)),
        *(("", 422), ("x" * 1001, 422)),
    ):
        refusal(await bob.http.post("samplers/check", json={"sampler": name}), code)
    assert gap_meter.asked == []

    assert (await ann.http.post(url_of(path, "publish"))).status_code == 204
    assert (await checked(bob, path))["served_by"] == "vllm"
    assert gap_meter.asked[0].owner == "bob", "it takes his turns"


async def test_a_server_that_samples_itself_has_no_gap_to_check(ann: User) -> None:
    made = await sampler(ann, await ann.session(), 0)

    assert "there is no gap to measure" in refusal(await ann.http.post("samplers/check", json={"sampler": made}), 400)
    answer = (await ann.http.get("samplers")).json()
    assert answer["samplers"][0]["gaps"] == [] and "gap_limit" not in answer
