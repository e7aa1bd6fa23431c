from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.catalog import CheckpointRow
from chockstone.console.pins import is_pinned, pin, unpin
from support.api.users import User

ANN = Caller("ann")


async def row_of(context: Context, path: str) -> CheckpointRow:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    kinds: Any = kind
    return await context.catalog.checkpoints.get(run_id, kinds, name, now=context.now())


def policy_of(context: Context, row: CheckpointRow) -> dict[str, Any] | None:
    rows = {each.scope: each.policy for each in context.engine.policies.list()}
    found = rows.get(f"run:{row.run_id}")
    return None if found is None else dict(found)


async def test_a_pinned_checkpoint_survives_the_rules_that_applied_before(
    context: Context, users: dict[str, User]
) -> None:
    ann = users["ann"]
    await ann.http.put("policies/mine", json={"keep_last": 1})
    run_id = await ann.run()
    first, second, third = [await ann.save(run_id, name) for name in ("one", "two", "three")]

    await pin(context, ANN, row := await row_of(context, first))
    report = await context.engine.sweeper.sweep(dry_run=True, owner="ann")

    assert is_pinned(context, row)
    assert [each.path for each in report.removed] == [second]
    assert policy_of(context, row) == {"keep_last": 1, "pinned": ["weights/one"]}
    assert third not in [each.path for each in report.removed]


async def test_the_last_unpin_takes_the_policy_of_the_run_away(context: Context, users: dict[str, User]) -> None:
    ann = users["ann"]
    await ann.http.put("policies/mine", json={"keep_last": 1})
    run_id = await ann.run()
    one, two = [await row_of(context, await ann.save(run_id, name)) for name in ("one", "two")]
    await pin(context, ANN, one)
    await pin(context, ANN, two)

    await unpin(context, ANN, one)
    assert policy_of(context, one) == {"keep_last": 1, "pinned": ["weights/two"]}
    await unpin(context, ANN, two)

    assert policy_of(context, one) is None
    assert not is_pinned(context, two)


async def test_a_policy_of_the_run_keeps_its_own_rules_and_quota(context: Context, users: dict[str, User]) -> None:
    ann = users["ann"]
    run_id = await ann.run()
    row = await row_of(context, await ann.save(run_id, "one"))
    await ann.http.put(f"policies/run:{run_id}", json={"keep_every": 5, "quota_bytes": 10**9})

    await pin(context, ANN, row)
    assert policy_of(context, row) == {"keep_every": 5, "quota_bytes": 10**9, "pinned": ["weights/one"]}
    await unpin(context, ANN, row)

    assert policy_of(context, row) == {"keep_every": 5, "quota_bytes": 10**9}


async def test_a_pin_of_a_name_for_every_kind_stays_for_the_other_kinds(
    context: Context, users: dict[str, User]
) -> None:
    ann = users["ann"]
    run_id = await ann.run()
    weights = await row_of(context, await ann.save(run_id, "best"))
    sampler = await row_of(context, await ann.save(run_id, "best", kind="sampler_weights"))
    await ann.http.put(f"policies/run:{run_id}", json={"keep_last": 1, "pinned": ["best"]})

    await unpin(context, ANN, weights)

    assert not is_pinned(context, weights)
    assert is_pinned(context, sampler)


@pytest.mark.parametrize("times", [1, 2])
async def test_pinning_again_changes_nothing(context: Context, users: dict[str, User], times: int) -> None:
    row = await row_of(context, await users["ann"].save(await users["ann"].run(), "one"))

    for _ in range(times):
        await pin(context, ANN, row)

    assert policy_of(context, row) == {"pinned": ["weights/one"]}
