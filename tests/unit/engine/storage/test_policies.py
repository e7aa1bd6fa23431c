from __future__ import annotations

from typing import Any

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints import Best, Retention
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.policies import PolicyStore, parse, to_json
from chockstone.wire.failures import BadRequest
from support.engine.making import NOW

RULES = StorageRules(retention=Retention(keep_last=10), user_quota_bytes=1000, run_quota_bytes=500)


async def policies_of(catalog: Catalog, rules: StorageRules = RULES) -> PolicyStore:
    policies = PolicyStore(catalog, rules, now=lambda: NOW)
    await policies.load()
    return policies


async def test_the_most_specific_scope_wins_as_a_whole(catalog: Catalog) -> None:
    policies = await policies_of(catalog)
    assert policies.policy_of("r", "ann").retention == RULES.retention
    found = [policies.policy_of("r", "ann").source]
    for scope, policy in (
        ("global", {"keep_last": 5, "ttl_seconds": 60}),
        ("user:ann", {"keep_every": 3}),
        ("run:r", {"keep_best": {"metric": "loss"}}),
    ):
        await policies.set(scope, policy, by="root")
        found.append(policies.policy_of("r", "ann").source)

    assert found == ["default", "global", "user:ann", "run:r"]
    assert policies.policy_of("r", "ann").retention == Retention(keep_best=Best("loss"))
    assert policies.policy_of("q", "ann").retention == Retention(keep_every=3)
    assert policies.policy_of("q", "bob").retention == Retention(keep_last=5, ttl_seconds=60.0)

    assert await policies.remove("run:r")
    assert not await policies.remove("run:r")
    assert policies.policy_of("r", "ann").source == "user:ann"


async def test_an_empty_policy_keeps_everything_and_a_quota_alone_says_nothing_about_it(catalog: Catalog) -> None:
    policies = await policies_of(catalog)

    await policies.set("run:r", {}, by="ann")
    await policies.set("run:q", {"quota_bytes": 7}, by="ann")

    assert policies.policy_of("r", "ann").retention == Retention()
    assert policies.policy_of("q", "ann").source == "default"


async def test_quotas_all_apply_and_none_can_be_raised_above_what_the_server_was_started_with(
    catalog: Catalog,
) -> None:
    policies = await policies_of(catalog)
    assert [(quota.limit_bytes, str(quota)) for quota in policies.quotas_of("r", "ann")] == [
        (1000, "user 'ann'"),
        (500, "run 'r'"),
    ]

    await policies.set("global", {"quota_bytes": 9000}, by="root")
    await policies.set("user:ann", {"quota_bytes": 5000}, by="ann")
    await policies.set("run:r", {"quota_bytes": 100}, by="ann")

    assert [quota.limit_bytes for quota in policies.quotas_of("r", "ann")] == [9000, 1000, 100]
    assert policies.quota_of_user("ann") == 1000
    assert policies.quota_of_run("r") == 100
    assert (await policies_of(catalog, StorageRules())).quota_of_user("bob") is None


async def test_policies_outlive_the_server(catalog: Catalog) -> None:
    await (await policies_of(catalog)).set("user:ann", {"keep_last": 2}, by="root")

    again = await policies_of(catalog)

    assert again.policy_of("r", "ann").retention == Retention(keep_last=2)
    [row] = again.list()
    assert (row.scope, row.policy, row.changed_at, row.changed_by) == ("user:ann", {"keep_last": 2}, NOW, "root")


async def test_whoever_sweeps_is_told_of_changes(catalog: Catalog) -> None:
    told: list[int] = []
    policies = PolicyStore(catalog, RULES, now=lambda: NOW, on_change=lambda: told.append(1))

    await policies.set("global", {"keep_last": 2}, by="root")
    await policies.remove("global")

    assert len(told) == 2


@pytest.mark.parametrize(
    "policy",
    [
        {"keep_lats": 1},
        {"keep_last": 0},
        {"keep_last": True},
        {"keep_every": 1.5},
        {"ttl_seconds": 0},
        {"ttl_seconds": float("nan")},
        {"ttl_seconds": "1h"},
        {"ttl_seconds": True},
        {"quota_bytes": -1},
        {"pinned": "final"},
        {"pinned": [1]},
        {"keep_best": "loss"},
        {"keep_best": {"mode": "min"}},
        {"keep_best": {"metric": "loss", "mode": "least"}},
        {"keep_best": {"metric": "loss", "count": 0}},
        {"keep_best": {"metric": "loss", "cuont": 1}},
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused_and_changes_nothing(
    catalog: Catalog, policy: dict[str, Any]
) -> None:
    policies = await policies_of(catalog)

    with pytest.raises(BadRequest):
        await policies.set("global", policy, by="root")

    assert policies.list() == ()
    assert await catalog.policies.list() == ()


@pytest.mark.parametrize("scope", ["", "everyone", "user:", "run:", "team:a"])
async def test_a_policy_needs_a_scope_that_means_something(catalog: Catalog, scope: str) -> None:
    with pytest.raises(BadRequest):
        await (await policies_of(catalog)).set(scope, {}, by="root")


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"keep_last": 3, "keep_every": 10},
        {"keep_best": {"metric": "loss", "mode": "max", "count": 2}, "pinned": ["a", "b"], "ttl_seconds": 60.0},
    ],
)
def test_retention_comes_back_as_the_policy_it_was(policy: dict[str, Any]) -> None:
    assert to_json(parse(policy)) == policy
