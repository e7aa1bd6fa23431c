"""Policies: what is kept of whose checkpoints, and how much of it.

For retention the most specific scope that has rules wins as a whole: the run, its user, everyone,
and last what the server was started with. Quotas all apply: of a run, of a user, of everyone. They
stand in the catalog and are held here, because every save asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from chockstone.catalog import Catalog, JsonObject, PolicyRow
from chockstone.checkpoints import Best, Retention
from chockstone.engine.config import StorageRules
from chockstone.wire.failures import BadRequest

GLOBAL: Final = "global"
DEFAULT: Final = "default"  # what the server was started with
_RETENTION: Final = frozenset({"keep_last", "keep_every", "keep_best", "ttl_seconds", "pinned"})
QUOTA_CEILING: Final = "quota_ceiling_bytes"  # an admin's limit, where a user has since set another below it
_QUOTAS: Final = frozenset({"quota_bytes", QUOTA_CEILING})
_FIELDS: Final = _RETENTION | _QUOTAS
_LONGEST_SECONDS: Final = 1e12


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    retention: Retention
    source: str  # the scope it comes from


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit for all checkpoints of ``owner``, of ``run_id``, or of everyone where both are None."""

    limit_bytes: int
    owner: str | None = None
    run_id: str | None = None

    def __str__(self) -> str:
        if self.run_id is not None:
            return f"run {self.run_id!r}"
        return "this server" if self.owner is None else f"user {self.owner!r}"


class PolicyStore:
    def __init__(
        self,
        catalog: Catalog,
        rules: StorageRules,
        *,
        now: Callable[[], datetime],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._catalog = catalog
        self._rules = rules
        self._now = now
        self._rows: dict[str, PolicyRow] = {}
        self._retentions: dict[str, Retention] = {}  # of scopes that say something about it
        self._on_change = on_change

    async def load(self) -> None:
        """Once, before anything is asked."""
        for row in await self._catalog.policies.list():
            self._take(row)

    def supposing(self, scope: str, policy: JsonObject | None) -> PolicyStore:
        """These, with ``scope`` as if it had this policy, or none. The catalog stays as it is. Raises BadRequest."""
        check_scope(scope)
        supposed = PolicyStore(self._catalog, self._rules, now=self._now)
        for row in self._rows.values():
            if row.scope != scope:
                supposed._take(row)
        if policy is not None:
            supposed._take(PolicyRow(scope, policy, changed_at=self._now(), changed_by=""))
        return supposed

    def policy_of(self, run_id: str, owner: str) -> RetentionPolicy:
        for scope in (f"run:{run_id}", f"user:{owner}", GLOBAL):
            if (retention := self._retentions.get(scope)) is not None:
                return RetentionPolicy(retention, scope)
        return RetentionPolicy(self._rules.retention, DEFAULT)

    def quotas_of(self, run_id: str, owner: str) -> tuple[Quota, ...]:
        """All that a save of this run has to respect."""
        found = (
            self._quota(self._set_quota(GLOBAL)),
            self._quota(self._set_quota(f"user:{owner}"), self._rules.user_quota_bytes, owner=owner),
            self._quota(self._set_quota(f"run:{run_id}"), self._rules.run_quota_bytes, run_id=run_id),
        )
        return tuple(quota for quota in found if quota is not None)

    def quota_of_user(self, owner: str) -> int | None:
        quota = self._quota(self._set_quota(f"user:{owner}"), self._rules.user_quota_bytes)
        return None if quota is None else quota.limit_bytes

    def quota_of_run(self, run_id: str) -> int | None:
        quota = self._quota(self._set_quota(f"run:{run_id}"), self._rules.run_quota_bytes)
        return None if quota is None else quota.limit_bytes

    @property
    def removes_anything(self) -> bool:
        """Whether some scope has a rule by which checkpoints go."""
        return any(map(_removes, (self._rules.retention, *self._retentions.values())))

    def default(self) -> dict[str, Any]:  # Any: plain JSON
        """What the server was started with, as a policy."""
        quota = self._rules.user_quota_bytes
        return to_json(self._rules.retention) | ({} if quota is None else {"quota_bytes": quota})

    def list(self) -> tuple[PolicyRow, ...]:
        """By scope."""
        return tuple(self._rows[scope] for scope in sorted(self._rows))

    async def set(self, scope: str, policy: JsonObject, *, by: str) -> PolicyRow:
        """Replace the scope's policy as a whole; it applies from the next sweep and save on. Raises BadRequest."""
        check_scope(scope)
        parse(policy)
        row = await self._catalog.policies.set(scope, policy, by=by, now=self._now())
        self._take(row)
        self._on_change()
        return row

    async def remove(self, scope: str) -> bool:
        """Whether there was one."""
        removed = await self._catalog.policies.remove(scope)
        self._rows.pop(scope, None)
        self._retentions.pop(scope, None)
        self._on_change()
        return removed

    def _take(self, row: PolicyRow) -> None:
        self._rows[row.scope] = row
        self._retentions.pop(row.scope, None)
        if not row.policy or set(row.policy) - _QUOTAS:  # a quota alone says nothing about what is kept
            self._retentions[row.scope] = parse(row.policy)

    def _set_quota(self, scope: str) -> int | None:
        row = self._rows.get(scope)
        return None if row is None else row.policy.get("quota_bytes")

    @staticmethod
    def _quota(*limits: int | None, owner: str | None = None, run_id: str | None = None) -> Quota | None:
        """The strictest of those that are set."""
        given = [limit for limit in limits if limit is not None]
        return Quota(min(given), owner, run_id) if given else None


def parse(policy: JsonObject) -> Retention:
    """What a policy says about retention. Raises BadRequest for one that says anything we do not know."""
    if unknown := sorted(set(policy) - _FIELDS):
        raise BadRequest(f"{unknown[0]!r} is no rule of a policy; there are {', '.join(sorted(_FIELDS))}")
    _integer(policy, "quota_bytes", least=0)
    pinned = policy.get("pinned") or []
    if not isinstance(pinned, list | tuple) or not all(isinstance(name, str) for name in pinned):
        raise BadRequest("pinned must be a list of checkpoint names")
    return Retention(
        keep_last=_integer(policy, "keep_last", least=1),
        keep_every=_integer(policy, "keep_every", least=1),
        keep_best=_best(policy.get("keep_best")),
        pinned=frozenset(pinned),
        ttl_seconds=_seconds(policy.get("ttl_seconds")),
    )


def to_json(retention: Retention) -> dict[str, Any]:  # Any: plain JSON
    best = retention.keep_best
    rules = {
        "keep_last": retention.keep_last,
        "keep_every": retention.keep_every,
        "keep_best": None if best is None else {"metric": best.metric, "mode": best.mode, "count": best.count},
        "ttl_seconds": retention.ttl_seconds,
        "pinned": sorted(retention.pinned) or None,
    }
    return {name: value for name, value in rules.items() if value is not None}


def check_scope(scope: str) -> None:
    kind, _, name = scope.partition(":")
    if scope != GLOBAL and not (kind in ("user", "run") and name):
        raise BadRequest(f"{scope[:300]!r} is no scope of a policy; use 'global', 'user:<id>' or 'run:<id>'")


def _removes(retention: Retention) -> bool:
    return retention.selects or retention.ttl_seconds is not None


def _integer(policy: JsonObject, name: str, *, least: int) -> int | None:
    value = policy.get(name)
    if value is not None and (type(value) is not int or not least <= value < 2**63):
        raise BadRequest(f"{name}={value!r:.80} must be a whole number of at least {least}")
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_SECONDS:
        raise BadRequest(f"ttl_seconds={value!r:.80} must be a positive number of seconds")
    return float(value)


def _best(value: object) -> Best | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not set(value) <= {"metric", "mode", "count"}:
        raise BadRequest(f"keep_best={value!r:.80} must be {{'metric': name, 'mode': 'min' or 'max', 'count': number}}")
    metric, mode = value.get("metric"), value.get("mode", "min")
    if not isinstance(metric, str) or not metric:
        raise BadRequest("keep_best needs a metric: the key of a number in user_metadata")
    return Best(metric, _mode(mode), _integer({"count": value.get("count", 1)}, "count", least=1) or 1)


def _mode(value: object) -> Literal["min", "max"]:
    if value == "min" or value == "max":
        return value
    raise BadRequest(f"keep_best.mode={value!r:.80} must be 'min' or 'max'")


def metrics_of(user_metadata: Mapping[str, str]) -> dict[str, float]:
    """The numbers among what a checkpoint was saved with, for ``keep_best``."""
    found: dict[str, float] = {}
    for name, value in user_metadata.items():
        try:
            number = float(value)
        except ValueError:
            continue
        if not math.isnan(number):
            found[name] = number
    return found
