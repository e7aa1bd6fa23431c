from __future__ import annotations

from typing import Any

import pytest

from support.api.users import User, refusal


async def test_a_policy_is_set_shown_and_taken_away(ann: User) -> None:
    run_id = await ann.run()
    policy = {"keep_last": 2, "keep_best": {"metric": "loss", "mode": "min", "count": 1}, "pinned": ["final"]}

    changed = await ann.http.put(f"policies/run:{run_id}", json=policy)

    assert changed.json()["policy"] == policy
    assert (changed.json()["scope"], changed.json()["changed_by"]) == (f"run:{run_id}", "ann")
    shown = (await ann.http.get("policies")).json()
    assert shown["policies"] == [changed.json()]
    assert isinstance(shown["default"], dict)
    assert (await ann.http.delete(f"policies/run:{run_id}")).status_code == 204
    refusal(await ann.http.delete(f"policies/run:{run_id}"), 404)
    assert (await ann.http.get("policies")).json()["policies"] == []


async def test_users_rule_over_themselves_and_admins_over_all(ann: User, bob: User, root: User) -> None:
    run_id = await ann.run()

    assert (await ann.http.put("policies/user:ann", json={"quota_bytes": 10**9})).status_code == 200
    for scope in ("global", "user:bob"):
        assert "only admins" in refusal(await ann.http.put(f"policies/{scope}", json={"keep_last": 1}), 403)
        refusal(await ann.http.delete(f"policies/{scope}"), 403)
    refusal(await bob.http.put(f"policies/run:{run_id}", json={"keep_last": 1}), 404)
    for scope in ("global", "user:bob", f"run:{run_id}"):
        assert (await root.http.put(f"policies/{scope}", json={"keep_last": 9})).status_code == 200

    def scopes(answer: Any) -> set[str]:
        return {each["scope"] for each in answer.json()["policies"]}

    assert scopes(await ann.http.get("policies")) == {"global", "user:ann", f"run:{run_id}"}
    assert scopes(await bob.http.get("policies")) == {"global", "user:bob"}
    assert scopes(await root.http.get("policies")) == {"global", "user:ann", "user:bob", f"run:{run_id}"}


async def test_an_owner_cannot_lift_a_quota_that_an_admin_set(ann: User, root: User) -> None:
    await root.http.put("policies/user:ann", json={"quota_bytes": 5})

    for change in ({}, {"keep_last": 2}, {"quota_bytes": 10**12}):
        refusal(await ann.http.put("policies/user:ann", json=change), 403)
    refusal(await ann.http.delete("policies/user:ann"), 403)
    assert (await ann.http.put("policies/user:ann", json={"quota_bytes": 4, "keep_last": 2})).status_code == 200
    assert (await root.http.delete("policies/user:ann")).status_code == 204


async def test_an_admins_quota_holds_after_its_owner_lowered_it(ann: User, root: User) -> None:
    await root.http.put("policies/user:ann", json={"quota_bytes": 5})
    await ann.http.put("policies/user:ann", json={"quota_bytes": 3, "keep_last": 2})

    raised = await ann.http.put("policies/user:ann", json={"quota_bytes": 5})

    assert raised.json()["policy"] == {"quota_bytes": 5}
    assert (raised.json()["changed_by"], raised.json()["quota_ceiling_bytes"]) == ("ann", 5)
    for change in ({}, {"quota_bytes": 6}):
        assert "an admin set a quota of 5 bytes" in refusal(await ann.http.put("policies/user:ann", json=change), 403)
    refusal(await ann.http.delete("policies/user:ann"), 403)


async def test_an_owner_may_lift_a_quota_of_her_own(ann: User) -> None:
    run_id = await ann.run()

    for scope in ("user:ann", f"run:{run_id}"):
        await ann.http.put(f"policies/{scope}", json={"quota_bytes": 5})
        assert (await ann.http.put(f"policies/{scope}", json={"quota_bytes": 10**12})).status_code == 200
        assert (await ann.http.put(f"policies/{scope}", json={"keep_last": 1})).status_code == 200
        await ann.http.put(f"policies/{scope}", json={"quota_bytes": 5})
        assert (await ann.http.delete(f"policies/{scope}")).status_code == 204


async def test_a_dry_run_tells_what_a_policy_would_remove_and_changes_nothing(ann: User, bob: User) -> None:
    run_id = await ann.run()
    paths = [await ann.save(run_id, name) for name in ("a", "b", "c")]
    theirs = await bob.run()
    for name in ("d", "e"):
        await bob.save(theirs, name)

    for scope in (f"run:{run_id}", "user:ann", "mine"):
        told = (await ann.http.put(f"policies/{scope}?dry_run=true", json={"keep_last": 1})).json()

        assert {each["tinker_path"] for each in told["removed"]} == set(paths[:2])
        assert [each["tinker_path"] for each in told["kept"]] == [paths[2]]
        assert told["dry_run"]
        assert told["freed_bytes"] == sum(each["size_bytes"] for each in told["removed"])
    refusal(await bob.http.put(f"policies/run:{run_id}?dry_run=true", json={"keep_last": 1}), 404)
    refusal(await ann.http.put("policies/global?dry_run=true", json={"keep_last": 1}), 403)
    assert (await ann.http.get("policies")).json()["policies"] == []
    assert (await ann.http.post("sweep", json={"dry_run": True})).json()["removed"] == []
    assert len(await ann.listed(run_id)) == 3


async def test_a_dry_run_tells_what_would_go_without_a_policy(ann: User) -> None:
    run_id = await ann.run()
    for name in ("a", "b", "c"):
        await ann.save(run_id, name)
    await ann.http.put("policies/user:ann", json={"keep_last": 1})
    await ann.http.put(f"policies/run:{run_id}", json={"keep_last": 3})

    told = await ann.http.delete(f"policies/run:{run_id}?dry_run=true")

    assert told.status_code == 200
    assert [each["reason"] for each in told.json()["removed"]] == ["retention of user:ann: no rule keeps it"] * 2
    assert len((await ann.http.get("policies")).json()["policies"]) == 2
    refusal(await ann.http.delete("policies/global?dry_run=true"), 403)
    await ann.http.delete("policies/user:ann")
    refusal(await ann.http.delete("policies/user:ann?dry_run=true"), 404)


async def test_mine_is_the_callers_own_scope(ann: User) -> None:
    assert (await ann.http.put("policies/mine", json={"keep_last": 1})).json()["scope"] == "user:ann"
    assert (await ann.http.delete("policies/mine")).status_code == 204


@pytest.mark.parametrize(
    "policy",
    [
        {"keeplast": 1}, {"keep_last": 0}, {"keep_last": -1}, {"keep_last": 10**30}, {"keep_last": "3"},
        {"keep_every": 0}, {"keep_best": {"metric": ""}}, {"keep_best": {"metric": "x", "mode": "best"}},
        {"keep_best": "loss"}, {"ttl_seconds": 0}, {"ttl_seconds": 1e300}, {"quota_bytes": -1}, {"pinned": [1]},
        [], None, "keep",
    ],
    ids=str,
)  # fmt: skip
async def test_rules_that_are_none_are_refused(ann: User, policy: object) -> None:
    answer = await ann.http.put("policies/user:ann", json=policy)

    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["detail"]
    assert (await ann.http.get("policies")).json()["policies"] == []


@pytest.mark.parametrize("scope", ["x", "run:", "user:", "run:..", "run:%00", "user", "Global", "project:p", "run:é"])
async def test_scopes_that_are_none_are_refused(root: User, scope: str) -> None:
    refusal(await root.http.put(f"policies/{scope}", json={"keep_last": 1}), 400)
