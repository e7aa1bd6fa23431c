from __future__ import annotations

from typing import Any

import pytest

from support.api.users import MODEL, User, refusal, url_of


async def search(user: User, **conditions: Any) -> dict[str, Any]:
    answer = await user.http.post("checkpoints/search", json=conditions)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def paths(user: User, **conditions: Any) -> list[str]:
    return [each["tinker_path"] for each in (await search(user, **conditions))["checkpoints"]]


async def test_checkpoints_are_found_by_project_metadata_type_and_base_model(ann: User) -> None:
    session_id = await ann.session(project_id="p")
    run_id, other = await ann.run(session_id), await ann.run()
    first = await ann.save(run_id, "first", user_metadata={"loss": "0.5", 'a "b".$c': "ä'%_"})
    second = await ann.save(run_id, "second", kind="sampler_weights", user_metadata={"loss": "0.25"})
    third = await ann.save(other, "third")

    assert await paths(ann) == [third, second, first]
    assert await paths(ann, project_ids=["p"]) == [second, first]
    assert await paths(ann, project_ids=[]) == []
    assert await paths(ann, user_metadata={"loss": "0.5"}) == [first]
    assert await paths(ann, user_metadata={"loss": "0.5", 'a "b".$c': "ä'%_"}) == [first]
    assert await paths(ann, user_metadata={"loss": "0.25", 'a "b".$c': "ä'%_"}) == []
    assert await paths(ann, user_metadata={"": ""}) == []
    assert await paths(ann, checkpoint_type="training") == [third, first]
    assert await paths(ann, checkpoint_type="sampler") == [second]
    assert await paths(ann, base_models=[MODEL]) == [third, second, first]
    assert await paths(ann, base_models=["another"]) == []


async def test_pages_follow_each_other_until_the_last(ann: User) -> None:
    run_id = await ann.run()
    made = [await ann.save(run_id, f"s{number}") for number in range(5)]

    seen: list[str] = []
    cursor: dict[str, Any] | None = None
    for expected in (2, 2, 1):
        page = await search(ann, limit=2, **({} if cursor is None else {"cursor": cursor}))
        assert len(page["checkpoints"]) == expected
        seen += [each["tinker_path"] for each in page["checkpoints"]]
        cursor = page.get("next_cursor")

    assert seen == made[::-1]
    assert cursor is None


async def test_a_user_finds_own_checkpoints_and_if_asked_published_ones(ann: User, bob: User) -> None:
    mine = await bob.save(await bob.run(), "mine")
    run_id = await ann.run()
    await ann.save(run_id, "private")
    shared = await ann.save(run_id, "shared")
    await ann.http.post(url_of(shared, "publish"))

    assert await paths(bob) == [mine] == await paths(bob, owner={"type": "own"})
    assert await paths(bob, owner={"type": "accessible"}) == [shared, mine]
    assert await paths(bob, owner={"type": "user", "owner_urns": ["bob"]}) == [mine]
    assert await paths(bob, owner={"type": "user", "owner_urns": ["ann"]}) == []


async def test_lists_name_the_base_model(ann: User) -> None:
    path = await ann.save(await ann.run(), "a")

    listed = (await ann.http.get("checkpoints")).json()["checkpoints"]

    assert [each["base_model"] for each in listed] == [MODEL]
    assert (await ann.entry(path))["base_model"] == MODEL


@pytest.mark.parametrize(
    "conditions",
    [
        {"limit": 0},
        {"limit": 201},
        {"checkpoint_type": "weights"},
        {"cursor": {"last_created_at": "2030-01-01T00:00:00Z", "last_checkpoint_uuid": "x"}},
        {"cursor": {"last_created_at": "today", "last_checkpoint_uuid": "1"}},
        {"owner": {"type": "everyone"}},
    ],
    ids=str,
)
async def test_a_malformed_search_is_refused(ann: User, conditions: dict[str, Any]) -> None:
    answer = await ann.http.post("checkpoints/search", json=conditions)

    assert answer.status_code in (400, 422)
    refusal(answer, answer.status_code)
