from __future__ import annotations

from typing import Any

import pytest

from .users import User, refusal


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
