"""Policies: what is kept and how much, settable for a run, a user or everyone."""

from __future__ import annotations

from fastapi import HTTPException, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import RowMissing
from chockstone.catalog.policies import PolicyRow
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import check_run_id
from chockstone.wire.policies import GLOBAL_SCOPE, RUN_SCOPE, USER_SCOPE, PoliciesResponse, Policy, ScopedPolicy

routes = Routes(prefix="/policies", tags=["storage"])


@routes.get("")
async def list_policies(context: ContextDep, caller: CallerDep) -> PoliciesResponse:
    """Those that apply to the caller's checkpoints, and to admins all."""
    rows = context.engine.policies.list()
    if not context.is_admin(caller):
        own = {GLOBAL_SCOPE, f"{USER_SCOPE}{caller.user_id}"}
        own |= {f"{RUN_SCOPE}{run.run_id}" async for run in context.runs_of(caller.user_id)}
        rows = tuple(row for row in rows if row.scope in own)
    return PoliciesResponse(policies=[_scoped(row) for row in rows], default=context.engine.policies.default())


@routes.put("/{scope}")
async def set_policy(scope: str, request: Policy, context: ContextDep, caller: CallerDep) -> ScopedPolicy:
    """Replaces what the scope had. The next sweep goes by it."""
    await _authorise(context, caller, scope)
    _refuse_to_lift(context, caller, scope, quota_bytes=request.quota_bytes)
    return _scoped(await context.engine.policies.set(scope, request.to_json(), by=caller.user_id))


@routes.delete("/{scope}", status_code=204)
async def remove_policy(scope: str, context: ContextDep, caller: CallerDep) -> Response:
    """From then on the next wider scope that has a policy applies."""
    await _authorise(context, caller, scope)
    _refuse_to_lift(context, caller, scope, quota_bytes=None)
    if not await context.engine.policies.remove(scope):
        raise RowMissing(f"scope {scope!r} has no policy; list the policies")
    return Response(status_code=204)


async def _authorise(context: Context, caller: Caller, scope: str) -> None:
    """Users rule over themselves and their runs, admins over all."""
    if scope.startswith(RUN_SCOPE):
        run_id = check_run_id(scope.removeprefix(RUN_SCOPE))
        await context.run_row(run_id, None if context.is_admin(caller) else caller)
        return
    if scope == f"{USER_SCOPE}{caller.user_id}":
        return
    if scope != GLOBAL_SCOPE and not scope.removeprefix(USER_SCOPE):
        raise BadRequest(f"scope {scope!r} names no user; it would be {USER_SCOPE}<id>")
    if scope != GLOBAL_SCOPE and not scope.startswith(USER_SCOPE):
        raise BadRequest(f"{scope[:300]!r} is not a scope; it is {GLOBAL_SCOPE!r}, {USER_SCOPE}<id> or {RUN_SCOPE}<id>")
    if not context.is_admin(caller):
        raise HTTPException(403, f"only admins of this server may change the policy of {scope!r}; ask one of them")


def _refuse_to_lift(context: Context, caller: Caller, scope: str, *, quota_bytes: int | None) -> None:
    """A quota is there to hold: whom it holds may lower it, and no more."""
    held = next((row.policy.get("quota_bytes") for row in context.engine.policies.list() if row.scope == scope), None)
    if held is None or context.is_admin(caller) or (quota_bytes is not None and quota_bytes <= held):
        return
    raise HTTPException(
        403,
        f"the policy of {scope!r} has a quota of {held} bytes, which only admins may raise or remove",
    )


def _scoped(row: PolicyRow) -> ScopedPolicy:
    return ScopedPolicy(scope=row.scope, policy=dict(row.policy), changed_at=row.changed_at, changed_by=row.changed_by)
