from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from chockstone.api.context import Context
from support.api.users import User, refusal
from support.engine.stored_answers import stored_answer, stored_choice


async def keep(context: Context, owner: str = "ann", **facts: Any) -> str:
    return await context.engine.conversations.keep(stored_answer(owner, **facts))


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_conversation_is_read_as_it_was_kept(context: Context, ann: User) -> None:
    choice = stored_choice((8, 9), (-0.5, -float("inf")))
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    kept = await keep(context, choices=[choice], messages=[{"role": "user", "content": "hi"}, message])

    found = (await ann.http.get(f"conversations/{kept}")).json()

    assert (found["prompt"], found["tinker_path"]) == ([5, 6, 7], "tinker://s:train:0/sampler_weights/s1")
    assert found["messages"][1]["content"] is None
    assert found["answers"] == [
        {
            "message": {"role": "assistant", "content": "it is 4"},
            "finish_reason": "stop",
            "tokens": [8, 9],
            "logprobs": [-0.5, None],
        }
    ]
    listed = (await ann.http.get("conversations")).json()
    assert [each["conversation_id"] for each in listed["conversations"]] == [kept]
    assert (listed["count"], listed["size_bytes"], listed["quota_bytes"]) == (1, 4096, 1 << 30)


async def test_users_do_not_see_or_change_conversations_of_others(
    context: Context, ann: User, bob: User, root: User
) -> None:
    kept = await keep(context)

    for other in (bob, root):
        assert (await other.http.get("conversations")).json()["conversations"] == []
        assert lines(await other.http.get("conversations/datums?loss_fn=cross_entropy")) == []
        assert "not yours or not there" in refusal(await other.http.get(f"conversations/{kept}"), 404)
        refusal(await other.http.put(f"conversations/{kept}/reward", json={"reward": 1}), 404)
        refusal(await other.http.put(f"conversations/{kept}/correction", json={"tokens": [1]}), 404)
        refusal(await other.http.delete(f"conversations/{kept}/correction"), 404)
        refusal(await other.http.delete(f"conversations/{kept}"), 404)
    assert (await ann.http.get(f"conversations/{kept}")).json()["feedback"] == []


async def test_rewards_and_corrections_are_in_the_export(context: Context, ann: User) -> None:
    kept = await keep(context)
    assert lines(await ann.http.get("conversations/datums")) == []

    rewarded = (await ann.http.put(f"conversations/{kept}/reward", json={"reward": -1})).json()
    await ann.http.put(f"conversations/{kept}/correction", json={"tokens": [1, 2, 3]})

    assert rewarded["feedback"] == [{"choice": 0, "reward": -1.0, "is_corrected": False}]
    (sampled,) = lines(await ann.http.get("conversations/datums"))
    (corrected,) = lines(await ann.http.get("conversations/datums?loss_fn=cross_entropy"))
    assert sampled["datum"]["loss_fn_inputs"]["advantages"]["data"] == [0.0, 0.0, -1.0, -1.0]
    assert (sampled["reward"], sampled["weights_digest"], sampled["corrected"]) == (-1.0, "ab" * 32, False)
    assert corrected["datum"]["loss_fn_inputs"]["target_tokens"]["data"] == [6, 7, 1, 2, 3]
    assert lines(await ann.http.get("conversations/datums?loss_fn=cross_entropy&min_reward=0")) == []

    assert (await ann.http.delete(f"conversations/{kept}/correction")).json()["feedback"][0]["is_corrected"] is False
    await ann.http.put(f"conversations/{kept}/reward", json={"reward": None})
    assert lines(await ann.http.get("conversations/datums")) == []


async def test_an_export_of_many_conversations_is_complete_and_can_be_continued(context: Context, ann: User) -> None:
    kept = [await keep(context) for _ in range(70)]

    exported = lines(await ann.http.get("conversations/datums?loss_fn=cross_entropy"))
    found = [line["conversation_id"] for line in exported]
    rest = lines(await ann.http.get(f"conversations/datums?loss_fn=cross_entropy&after={found[60]}"))

    assert sorted(found) == sorted(kept)
    assert [line["conversation_id"] for line in rest] == found[61:]


@pytest.mark.parametrize(
    "body",
    [
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"reward": 1e300}',
        b'{"reward": "1"}',
        b'{"reward": [1]}',
        b"{}",
        b'{"reward": 1, "choice": -1}',
        b'{"reward": 1, "choice": 1}',
        b'{"reward": 1, "choice": 99999999999999999999}',
    ],
)
async def test_a_hostile_reward_is_a_client_error_and_changes_nothing(body: bytes, context: Context, ann: User) -> None:
    kept = await keep(context)

    answer = await ann.http.put(
        f"conversations/{kept}/reward", content=body, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code in (400, 422), answer.text
    assert (await ann.http.get(f"conversations/{kept}")).json()["feedback"] == []


@pytest.mark.parametrize(
    "body", [{}, {"tokens": []}, {"tokens": [-1]}, {"tokens": [2**31]}, {"text": "a", "tokens": [1]}, {"text": ""}]
)
async def test_a_hostile_correction_is_a_client_error(body: dict[str, Any], context: Context, ann: User) -> None:
    kept = await keep(context)

    assert (await ann.http.put(f"conversations/{kept}/correction", json=body)).status_code in (400, 422)


@pytest.mark.parametrize("hostile", ["..", "%2e%2e%2fx", "chatcmpl-" + "g" * 32, "a%00b", "%ff", "x" * 99])
async def test_a_hostile_id_is_not_there(hostile: str, ann: User) -> None:
    for answer in (
        await ann.http.get(f"conversations/{hostile}"),
        await ann.http.delete(f"conversations/{hostile}"),
        await ann.http.put(f"conversations/{hostile}/reward", json={"reward": 1}),
        await ann.http.get(f"conversations?before={hostile}"),
        await ann.http.get(f"conversations/datums?after={hostile}"),
    ):
        assert answer.status_code in (404, 405, 422), answer.text


async def test_a_deleted_conversation_is_gone_and_noted(context: Context, ann: User) -> None:
    kept = await keep(context)

    assert (await ann.http.delete(f"conversations/{kept}")).status_code == 204

    refusal(await ann.http.get(f"conversations/{kept}"), 404)
    await context.engine.audit.flush()
    (noted,) = await context.catalog.audit.list("ann", prefix="conversation_")
    assert (noted.event, noted.details["conversation_id"]) == ("conversation_deleted", kept)
