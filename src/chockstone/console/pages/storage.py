"""Storage: who uses how much, which policies apply, and the trash. A policy is previewed before it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import ValidationError

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.disk import policies as policies_api
from chockstone.api.operations.disk import storage as storage_api
from chockstone.api.operations.disk import trash as trash_api
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import RowMissing
from chockstone.console.formatting import duration, size
from chockstone.console.forms import read_form
from chockstone.console.units import BYTE_UNITS, TIME_UNITS, read_amount, read_count, split_amount
from chockstone.console.views import ViewsDep
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.schema import explain
from chockstone.wire.messages.storage import (
    GLOBAL_SCOPE,
    OWN_SCOPE,
    RUN_SCOPE,
    USER_SCOPE,
    PoliciesResponse,
    Policy,
    SweepRequest,
    SweepResponse,
    UndeleteRequest,
)

routes = APIRouter(prefix="/storage")
_SHOWN: Final = 100  # runs, users, trash entries and lines of a preview


@dataclass(frozen=True, slots=True)
class Share:
    """What a user or a run uses."""

    name: str
    note: str
    count: int
    size_bytes: int
    quota_bytes: int | None

    @property
    def is_nearly_full(self) -> bool:
        return self.quota_bytes is not None and self.size_bytes > 0.9 * self.quota_bytes


@dataclass(frozen=True, slots=True)
class PolicyView:
    scope: str
    label: str
    rules: tuple[str, ...]  # in words
    changed_at: datetime | None
    changed_by: str | None
    ceiling_bytes: int | None
    may_change: bool


@dataclass(frozen=True, slots=True)
class PolicyForm:
    """The fields of the form, as text."""

    scope: str
    keep_last: str = ""
    keep_every: str = ""
    best_metric: str = ""
    best_mode: str = "min"
    best_count: str = ""
    ttl: str = ""
    ttl_unit: str = "days"
    quota: str = ""
    quota_unit: str = "GiB"
    pinned: str = ""
    exists: bool = False


@dataclass(frozen=True, slots=True)
class TrashView:
    trash_id: int
    path: str
    size_bytes: int
    reason: str
    discarded_at: datetime
    purge_at: datetime
    is_in_use: bool


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    used = await storage_api.storage(context, caller)
    listed = await policies_api.list_policies(context, caller)
    return await views.page(
        request,
        "storage",
        used=used,
        users=[Share(u.user_id, "", u.count, u.size_bytes, u.quota_bytes) for u in used.users[:_SHOWN]],
        runs=[Share(r.run_id, r.base_model, r.count, r.size_bytes, r.quota_bytes) for r in used.runs[:_SHOWN]],
        more_runs=max(0, len(used.runs) - _SHOWN),
        policies=describe_policies(context, caller, listed),
        trash=await list_trash(context, caller),
        keeps_seconds=context.config.storage.trash_seconds,
    )


@routes.get("/policy")
async def edit_policy(
    request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep, scope: str = OWN_SCOPE
) -> Response:
    """The form with the policy of a scope."""
    listed = await policies_api.list_policies(context, caller)
    name = f"{USER_SCOPE}{caller.user_id}" if scope == OWN_SCOPE else scope[:300]
    found = next((each.policy for each in listed.policies if each.scope == name), None)
    return await views.part(
        request, "policy_form", form=fill_form(scope[:300], found), time_units=TIME_UNITS, byte_units=BYTE_UNITS
    )


@routes.post("/policy/preview")
async def preview_policy(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    """What the next sweep would remove under the policy of the form."""
    form = await read_form(request)
    policy, scope = read_policy(form), read_scope(form)
    found = await policies_api.set_policy(scope, policy, context, caller, dry_run=True)
    return await _preview(request, views, found, scope=scope, policy=policy, does="policy")


@routes.post("/policy/apply")
async def apply_policy(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    """The policy comes as JSON, as the preview showed it."""
    form = await read_form(request)
    await policies_api.set_policy(read_scope(form), _parse(form.get("policy", "")), context, caller)
    return await _policies(request, context, caller, views, notice="Policy applied. The next sweep follows it.")


@routes.post("/policy/preview-removal")
async def preview_removal(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    scope = read_scope(await read_form(request))
    answer = await policies_api.remove_policy(scope, context, caller, dry_run=True)
    found = SweepResponse.model_validate_json(bytes(answer.body))
    return await _preview(request, views, found, scope=scope, policy=None, does="removal")


@routes.post("/policy/remove")
async def remove_policy(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    await policies_api.remove_policy(read_scope(await read_form(request)), context, caller)
    return await _policies(request, context, caller, views, notice="Policy removed. The next wider one applies.")


@routes.post("/sweep/preview")
async def preview_sweep(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    found = await storage_api.sweep(SweepRequest(dry_run=True), context, caller)
    return await _preview(request, views, found, scope="", policy=None, does="sweep")


@routes.post("/sweep")
async def sweep(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    found = await storage_api.sweep(SweepRequest(dry_run=False), context, caller)
    return await _preview(request, views, found, scope="", policy=None, does="sweep")


@routes.post("/trash/{trash_id}/undelete")
async def undelete(
    trash_id: int, request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep
) -> Response:
    if not 0 <= trash_id < 2**63:
        raise RowMissing(f"trash entry {trash_id} is not yours or not there")
    name = (await read_form(request)).get("name", "").strip() or None
    try:
        wanted = UndeleteRequest(name=name)
    except ValidationError as error:
        raise BadRequest(explain(error.errors())) from None
    restored = await trash_api.undelete(trash_id, wanted, context, caller)
    return await _trash(request, context, caller, views, notice=f"Undeleted {restored.tinker_path}")


@routes.post("/trash/empty")
async def empty_trash(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    found = await trash_api.empty_trash(context, caller)
    kept = f" Samplers use {len(found.in_use)} of them, which stay." if found.in_use else ""
    return await _trash(request, context, caller, views, notice=f"Freed {size(found.freed_bytes)}.{kept}")


async def list_trash(context: Context, caller: Caller) -> tuple[TrashView, ...]:
    entries = (await trash_api.list_trash(context, caller)).entries
    return tuple(
        TrashView(
            each.trash_id,
            each.tinker_path,
            each.size_bytes,
            each.reason,
            each.discarded_at,
            each.purge_at,
            bool(each.in_use),
        )
        for each in entries[:_SHOWN]
    )


def describe_policies(context: Context, caller: Caller, listed: PoliciesResponse) -> tuple[PolicyView, ...]:
    """The server's own rules last: they apply where no policy does."""
    is_admin, own = context.is_admin(caller), f"{USER_SCOPE}{caller.user_id}"
    found = [
        PolicyView(
            each.scope,
            _label(each.scope, own),
            rules_in_words(each.policy),
            each.changed_at,
            each.changed_by,
            each.quota_ceiling_bytes,
            may_change=is_admin or each.scope != GLOBAL_SCOPE,
        )
        for each in listed.policies
    ]
    rules = (*rules_in_words(listed.default), *_default_quota(listed))
    return (*found, PolicyView("", "Settings of the server", rules, None, None, None, may_change=False))


def rules_in_words(policy: Mapping[str, Any]) -> tuple[str, ...]:
    words: list[str] = []
    if (last := policy.get("keep_last")) is not None:
        words.append(f"keep the last {last:,}")
    if (every := policy.get("keep_every")) is not None:
        words.append(f"keep every step divisible by {every:,}")
    if (best := policy.get("keep_best")) is not None:
        mode = "lowest" if best.get("mode", "min") == "min" else "highest"
        words.append(f"keep the {best.get('count', 1):,} with the {mode} {best['metric']}")
    if (ttl := policy.get("ttl_seconds")) is not None:
        words.append(f"remove after {duration(ttl)}")
    if pinned := policy.get("pinned"):
        words.append(f"never remove {', '.join(pinned[:5])}{' …' if len(pinned) > 5 else ''}")
    if (quota := policy.get("quota_bytes")) is not None:
        words.append(f"quota {size(quota)}")
    return tuple(words) or ("keep everything",)


def fill_form(scope: str, policy: Mapping[str, Any] | None) -> PolicyForm:
    if policy is None:
        return PolicyForm(scope)
    best = policy.get("keep_best") or {}
    ttl, ttl_unit = split_amount(policy.get("ttl_seconds"), TIME_UNITS)
    quota, quota_unit = split_amount(policy.get("quota_bytes"), BYTE_UNITS)
    return PolicyForm(
        scope,
        keep_last=str(policy.get("keep_last") or ""),
        keep_every=str(policy.get("keep_every") or ""),
        best_metric=best.get("metric", ""),
        best_mode=best.get("mode", "min"),
        best_count=str(best.get("count", "")),
        ttl=ttl,
        ttl_unit=ttl_unit,
        quota=quota,
        quota_unit=quota_unit,
        pinned=", ".join(policy.get("pinned") or ()),
        exists=True,
    )


def read_policy(form: Mapping[str, str]) -> Policy:
    """Raises BadRequest."""
    metric = form.get("best_metric", "").strip()
    best = {"metric": metric, "mode": form.get("best_mode", "min"), "count": read_count(form, "best_count") or 1}
    quota = read_amount(form, "quota", units="bytes")
    pinned = [name for name in form.get("pinned", "").replace(",", " ").split() if name]
    return _checked(
        {
            "keep_last": read_count(form, "keep_last"),
            "keep_every": read_count(form, "keep_every"),
            "keep_best": best if metric else None,
            "ttl_seconds": read_amount(form, "ttl", units="time"),
            "quota_bytes": None if quota is None else round(quota),
            "pinned": pinned or None,
        }
    )


def read_scope(form: Mapping[str, str]) -> str:
    """The scope of a form: a whole one, or its kind and its name."""
    kind, name = form.get("scope", "").strip(), form.get("scope_name", "").strip()
    scope = f"{kind}{name}" if kind in (USER_SCOPE, RUN_SCOPE) else kind
    if not scope:
        raise BadRequest("a policy needs a scope; choose whose checkpoints it applies to")
    return scope


def _parse(text: str) -> Policy:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRequest("the policy of the preview cannot be read; preview it again") from None
    return _checked(found)


def _checked(values: object) -> Policy:
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        raise BadRequest(explain(error.errors())) from None


async def _preview(
    request: Request,
    views: ViewsDep,
    found: object,
    *,
    scope: str,
    policy: Policy | None,
    does: str,
) -> Response:
    if not isinstance(found, SweepResponse):
        raise HTTPException(500, "the server gave no preview; its log says why")
    return await views.part(
        request,
        "sweep_preview",
        removed=found.removed[:_SHOWN],
        more=max(0, len(found.removed) - _SHOWN),
        removed_count=len(found.removed),
        removed_bytes=sum(each.size_bytes for each in found.removed),
        freed_bytes=found.freed_bytes,
        kept_count=len(found.kept),
        dry_run=found.dry_run,
        scope=scope,
        policy=None if policy is None else orjson.dumps(policy.to_json()).decode(),
        words=None if policy is None else rules_in_words(policy.to_json()),
        does=does,
    )


async def _policies(request: Request, context: Context, caller: Caller, views: ViewsDep, *, notice: str) -> Response:
    listed = await policies_api.list_policies(context, caller)
    found = describe_policies(context, caller, listed)
    return await views.part(request, "policies", policies=found, notice=notice)


async def _trash(request: Request, context: Context, caller: Caller, views: ViewsDep, *, notice: str) -> Response:
    found = await list_trash(context, caller)
    keeps = context.config.storage.trash_seconds
    return await views.part(request, "trash", trash=found, keeps_seconds=keeps, notice=notice)


def _label(scope: str, own: str) -> str:
    if scope == GLOBAL_SCOPE:
        return "All users"
    if scope == own:
        return "Your checkpoints"
    kind, _, name = scope.partition(":")
    return f"{'User' if kind == 'user' else 'Run'} {name}"


def _default_quota(listed: PoliciesResponse) -> tuple[str, ...]:
    run_bytes = listed.default_quotas.run_bytes
    return () if run_bytes is None else (f"quota {size(run_bytes)} for each run",)
