"""Pins: keep a checkpoint whatever the retention rules say, by a policy of its run.

A policy of a run replaces wider policies as a whole, so the first pin of a run copies the rules that apply to it. The
last unpin takes the copy away, if the rules are still the same.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from chockstone.api.context import Context
from chockstone.api.operations.disk.policies import remove_policy, set_policy
from chockstone.api.users import Caller
from chockstone.catalog import CheckpointRow
from chockstone.engine.storage.policies import QUOTA_CEILING, to_json
from chockstone.wire.messages.storage import RUN_SCOPE, Policy
from chockstone.wire.paths import Kind


def is_pinned(context: Context, row: CheckpointRow) -> bool:
    pinned = context.engine.policies.policy_of(row.run_id, row.owner).retention.pinned
    return row.name in pinned or _pin_of(row) in pinned


async def pin(context: Context, caller: Caller, row: CheckpointRow) -> None:
    """The caller owns the checkpoint."""
    rules = _rules(context, row)
    await _set(context, caller, row, rules, pinned=_names(rules) | {_pin_of(row)})


async def unpin(context: Context, caller: Caller, row: CheckpointRow) -> None:
    """The caller owns the checkpoint. A pin of its name for every kind stays for the other kinds."""
    rules = _rules(context, row)
    names = _names(rules)
    if row.name in names:
        names |= {f"{kind}/{row.name}" for kind in Kind}
    names -= {row.name, _pin_of(row)}
    scope = f"{RUN_SCOPE}{row.run_id}"
    inherited = context.engine.policies.supposing(scope, None).policy_of(row.run_id, row.owner).retention
    left = {**rules, "pinned": sorted(names) or None}
    if {name: value for name, value in left.items() if value is not None} == to_json(inherited):
        await remove_policy(scope, context, caller)
    else:
        await _set(context, caller, row, rules, pinned=names)


def _rules(context: Context, row: CheckpointRow) -> dict[str, Any]:  # Any: plain JSON
    """The rules that apply to the run, with the quota of its own policy."""
    policies = context.engine.policies
    own = next((each.policy for each in policies.list() if each.scope == f"{RUN_SCOPE}{row.run_id}"), {})
    quota_bytes = own.get("quota_bytes", own.get(QUOTA_CEILING))
    quota = {} if quota_bytes is None else {"quota_bytes": quota_bytes}
    return to_json(policies.policy_of(row.run_id, row.owner).retention) | quota


async def _set(
    context: Context, caller: Caller, row: CheckpointRow, rules: dict[str, Any], *, pinned: Set[str]
) -> None:
    policy = Policy.model_validate({**rules, "pinned": sorted(pinned) or None})
    await set_policy(f"{RUN_SCOPE}{row.run_id}", policy, context, caller)


def _names(rules: dict[str, Any]) -> set[str]:
    return set(rules.get("pinned") or ())


def _pin_of(row: CheckpointRow) -> str:
    return f"{row.kind}/{row.name}"
