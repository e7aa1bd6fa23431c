"""Policies: retention rules and quotas for one run, one user or all users."""

from __future__ import annotations

from fastapi import HTTPException, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.disk.storage import describe
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import JsonObject, RowMissing
from chockstone.catalog.tables.policies import PolicyRow
from chockstone.engine.storage.policies import QUOTA_CEILING
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.storage import (
    GLOBAL_SCOPE,
    OWN_SCOPE,
    RUN_SCOPE,
    USER_SCOPE,
    PoliciesResponse,
    Policy,
    Quotas,
    ScopedPolicy,
    SweepResponse,
)
from chockstone.wire.paths import check_run_id

routes = Routes(prefix="/policies", tags=["storage"])


@routes.get("", summary="List policies")
async def list_policies(context: ContextDep, caller: CallerDep) -> PoliciesResponse:
    """The policies that apply to the caller's checkpoints, or for admins all policies."""
    rows = context.engine.policies.list()
    if not context.is_admin(caller):
        own = {GLOBAL_SCOPE, f"{USER_SCOPE}{caller.user_id}"}
        own |= {f"{RUN_SCOPE}{run.run_id}" async for run in context.runs_of(caller.user_id)}
        rows = tuple(row for row in rows if row.scope in own)
    rules = context.config.storage
    return PoliciesResponse(
        policies=[_scoped(row) for row in rows],
        default=context.engine.policies.default(),
        default_quotas=Quotas(user_bytes=rules.user_quota_bytes, run_bytes=rules.run_quota_bytes),
    )


@routes.put("/{scope}", response_model=ScopedPolicy | SweepResponse, summary="Set a policy")
async def set_policy(
    scope: str, request: Policy, context: ContextDep, caller: CallerDep, dry_run: bool = False
) -> ScopedPolicy | SweepResponse:
    """Replace the scope's policy, from the next sweep on. With ``dry_run`` only list what that sweep would remove."""
    scope = await _authorised(context, caller, scope)
    ceiling_bytes = _ceiling(context, caller, scope)
    if ceiling_bytes is not None and (request.quota_bytes is None or request.quota_bytes > ceiling_bytes):
        raise _too_high(scope, ceiling_bytes)
    policy = request.to_json()
    if dry_run:
        return await _preview(context, scope, policy)
    if ceiling_bytes is not None:
        policy[QUOTA_CEILING] = ceiling_bytes
    return _scoped(await context.engine.policies.set(scope, policy, by=caller.user_id))


@routes.delete(
    "/{scope}",
    status_code=204,
    response_model=None,
    responses={200: {"model": SweepResponse}},
    summary="Remove a policy",
)
async def remove_policy(scope: str, context: ContextDep, caller: CallerDep, dry_run: bool = False) -> Response:
    """Then the policy of the next wider scope applies. With ``dry_run`` only list what a sweep would remove."""
    scope = await _authorised(context, caller, scope)
    ceiling_bytes = _ceiling(context, caller, scope)
    if ceiling_bytes is not None:
        raise _too_high(scope, ceiling_bytes)
    if dry_run:
        if _row(context, scope) is None:
            raise _no_policy(scope)
        return Response((await _preview(context, scope, None)).encode(), media_type="application/json")
    if not await context.engine.policies.remove(scope):
        raise _no_policy(scope)
    return Response(status_code=204)


async def _preview(context: Context, scope: str, policy: JsonObject | None) -> SweepResponse:
    """Preview all checkpoints of the scope, also those that a narrower policy decides on."""
    supposed = context.engine.policies.supposing(scope, policy)
    run_id = scope.removeprefix(RUN_SCOPE) if scope.startswith(RUN_SCOPE) else None
    owner = scope.removeprefix(USER_SCOPE) if scope.startswith(USER_SCOPE) else None
    return describe(await context.engine.sweeper.preview(supposed, run_id=run_id, owner=owner))


async def _authorised(context: Context, caller: Caller, scope: str) -> str:
    """The scope, if the caller may change it: users their own and their runs', admins any."""
    if scope == OWN_SCOPE:
        return f"{USER_SCOPE}{caller.user_id}"
    if scope.startswith(RUN_SCOPE):
        run_id = check_run_id(scope.removeprefix(RUN_SCOPE))
        await context.run_row(run_id, None if context.is_admin(caller) else caller)
        return scope
    if scope == f"{USER_SCOPE}{caller.user_id}":
        return scope
    if scope != GLOBAL_SCOPE and not scope.removeprefix(USER_SCOPE):
        raise BadRequest(f"scope {scope!r} names no user; it would be {USER_SCOPE}<id>")
    if scope != GLOBAL_SCOPE and not scope.startswith(USER_SCOPE):
        raise BadRequest(
            f"{scope[:300]!r} is not a scope; it is {GLOBAL_SCOPE!r}, {OWN_SCOPE!r}, "
            f"{USER_SCOPE}<id> or {RUN_SCOPE}<id>"
        )
    if not context.is_admin(caller):
        raise HTTPException(403, f"only admins of this server may change the policy of {scope!r}; ask one of them")
    return scope


def _ceiling(context: Context, caller: Caller, scope: str) -> int | None:
    """The limit on the caller's quota: the quota that an admin set. None: no limit."""
    row = _row(context, scope)
    if row is None or context.is_admin(caller):
        return None
    ceiling_bytes: int | None = row.policy.get(QUOTA_CEILING)
    if ceiling_bytes is None and row.changed_by != caller.user_id:
        ceiling_bytes = row.policy.get("quota_bytes")
    return ceiling_bytes


def _row(context: Context, scope: str) -> PolicyRow | None:
    return next((row for row in context.engine.policies.list() if row.scope == scope), None)


def _too_high(scope: str, ceiling_bytes: int) -> HTTPException:
    return HTTPException(
        403,
        f"an admin set a quota of {ceiling_bytes} bytes in the policy of {scope!r}: a policy of yours needs a quota "
        f"that is no higher, and only admins may take it away",
    )


def _no_policy(scope: str) -> RowMissing:
    return RowMissing(f"scope {scope!r} has no policy; list the policies")


def _scoped(row: PolicyRow) -> ScopedPolicy:
    policy = dict(row.policy)
    ceiling_bytes = policy.pop(QUOTA_CEILING, None)
    return ScopedPolicy(
        scope=row.scope,
        policy=policy,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
        quota_ceiling_bytes=ceiling_bytes,
    )
