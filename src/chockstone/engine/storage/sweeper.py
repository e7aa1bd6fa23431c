"""The sweeper: deletes expired checkpoints and old trash, and applies retention policies.

Every minute it looks for what has expired, for trash past its window, and for runs with new checkpoints or with some
that have just become too old for their policy. It looks at all runs when it starts, when a policy changes, and every
hour. A dry run reports what it would do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from chockstone.catalog import AliasRow, Catalog, CheckpointRow
from chockstone.checkpoints import Retention, StoredCheckpoint
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, StoreError, UnsupportedArchive
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.retention.policy import RetentionPlan, plan_retention
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.leftovers import Leftovers
from chockstone.engine.storage.policies import PolicyStore, RetentionPolicy, metrics_of
from chockstone.engine.storage.verification import CheckpointVerifier

log = logging.getLogger(__name__)
_ALL_SECONDS: Final = 3600.0  # between two looks at every run
_EXPIRED_AT_ONCE: Final = 500
_MANY: Final = 100_000
_PARTIAL_SECONDS: Final = 3600.0  # half-written files and empty directories older than this are deleted
_RECORDS: Final = timedelta(days=400)  # how long audit and usage are kept
_BY: Final = "sweeper"
_EXPIRED: Final = "expired"


@dataclass(frozen=True, slots=True)
class SweepRemoved:
    path: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SweepKept:
    path: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepReport:
    removed: tuple[SweepRemoved, ...] = ()
    kept: tuple[SweepKept, ...] = ()
    purged: int = 0  # archives deleted, of these and of what was in the trash
    freed_bytes: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Scope:
    run_id: str | None = None
    owner: str | None = None

    def holds(self, row: CheckpointRow) -> bool:
        return self.run_id in (None, row.run_id) and self.owner in (None, row.owner)


_EVERYTHING: Final = _Scope()


@dataclass(slots=True)
class _Plan:
    remove: list[tuple[CheckpointRow, str]] = field(default_factory=list)
    kept: list[SweepKept] = field(default_factory=list)


class Sweeper:
    def __init__(
        self,
        catalog: Catalog,
        storage: ArchiveStorage,
        checkpoints: CheckpointLifecycle,
        verifier: CheckpointVerifier,
        policies: PolicyStore,
        leftovers: Leftovers,
        rules: StorageRules,
        *,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool] = lambda: True,
    ) -> None:
        """While ``trusts_ages`` is false, nothing is deleted because of its age."""
        self._catalog = catalog
        self._storage = storage
        self._checkpoints = checkpoints
        self._verifier = verifier
        self._policies = policies
        self._leftovers = leftovers
        self._rules = rules
        self._now = now
        self._trusts_ages = trusts_ages
        self._changed: set[str] = set()  # runs with checkpoints that no sweep has seen
        self._due: dict[str, datetime] = {}  # by run: when a checkpoint gets too old, if within the hour
        self._all_after: datetime | None = None  # when every run is looked at again; None: the next time
        self._sweeping = asyncio.Lock()

    def saw(self, run_id: str) -> None:
        """The run has one checkpoint more."""
        self._changed.add(run_id)

    def look_at_everything(self) -> None:
        """The rules changed: the next sweep looks at every run."""
        self._all_after = None

    async def keep(self) -> None:
        """Sweep, for ever."""
        while True:
            try:
                await self.sweep_what_changed()
            except Exception as error:  # noqa: BLE001  # retried with the next sweep
                log.warning("sweep failed error=%s", error)
                self.look_at_everything()  # what changed is forgotten by now
            await asyncio.sleep(self._rules.sweep_seconds)

    async def sweep(self, *, dry_run: bool = False, run_id: str | None = None, owner: str | None = None) -> SweepReport:
        """Apply every rule to all checkpoints, or to a run's or an owner's, and purge the trash that is due.

        A dry run changes nothing, and tells what a sweep would have done at this moment.
        """
        scope = _Scope(run_id, owner)
        async with self._sweeping:
            plan = await self._plan(scope, self._policies)
            return await (self._foretell(plan, scope) if dry_run else self._carry_out(plan, scope))

    async def preview(
        self, policies: PolicyStore, *, run_id: str | None = None, owner: str | None = None
    ) -> SweepReport:
        """What a sweep would do at this moment under other policies. Changes nothing."""
        scope = _Scope(run_id, owner)
        async with self._sweeping:
            return await self._foretell(await self._plan(scope, policies), scope)

    async def _plan(self, scope: _Scope, policies: PolicyStore) -> _Plan:
        plan = _Plan()
        await self._plan_expired(plan, scope)
        for run_id in [scope.run_id] if scope.run_id is not None else await self._runs(scope.owner):
            await self._plan_run(run_id, plan, scope, policies, tell=True)
        return plan

    async def sweep_what_changed(self) -> SweepReport:
        """Sweep everything that may have changed since the last time."""
        async with self._sweeping:
            plan = _Plan()
            await self._plan_expired(plan, _EVERYTHING)
            for run_id in await self._due_runs():
                await self._plan_run(run_id, plan, _EVERYTHING, self._policies)
            return await self._carry_out(plan, _EVERYTHING)

    async def _due_runs(self) -> Iterable[str]:
        now = self._now()
        changed, self._changed = self._changed, set()
        is_hour = self._all_after is None or self._all_after <= now
        if is_hour:
            self._all_after = now + timedelta(seconds=_ALL_SECONDS)
            await self._tidy(now)
        if not self._policies.removes_anything:
            return ()
        if is_hour:
            self._due.clear()
            return await self._runs(None)
        return sorted(changed.union(run_id for run_id, due in self._due.items() if due <= now))

    async def _tidy(self, now: datetime) -> None:
        try:
            await self._leftovers.free()
            if self._trusts_ages():
                await self._tidy_by_age(now)
        except StoreError as error:
            log.warning("store not tidied error=%s", error)

    async def _tidy_by_age(self, now: datetime) -> None:
        await self._catalog.audit.trim(now - _RECORDS)
        await self._catalog.usage.trim(now - _RECORDS)
        for partial in await self._storage.sweep_partials(min_age_seconds=_PARTIAL_SECONDS):
            log.info("partial write swept place=%s bytes=%d", partial.place, partial.size)
        await self._storage.prune(min_age_seconds=_PARTIAL_SECONDS)

    async def _runs(self, owner: str | None) -> Sequence[str]:
        return sorted(await self._catalog.checkpoints.usage_by_run(self._now(), owner))

    async def _plan_expired(self, plan: _Plan, scope: _Scope) -> None:
        if not self._trusts_ages():
            return
        limit = _EXPIRED_AT_ONCE
        while True:
            found = await self._catalog.checkpoints.list_expired(now=self._now(), limit=limit)
            if len(found) < limit:
                break
            limit *= 4
        plan.remove += [(row, _EXPIRED) for row in found if scope.holds(row)]

    async def _plan_run(
        self, run_id: str, plan: _Plan, scope: _Scope, policies: PolicyStore, *, tell: bool = False
    ) -> None:
        """Decide for each checkpoint of the run, each kind on its own. ``tell``: also where there is nothing to do."""
        found = await self._catalog.checkpoints.list_by_run(run_id, now=self._now())
        rows = [row for row in found if scope.holds(row)]
        if not tell:
            self._due.pop(run_id, None)
        if not rows:
            return
        policy = policies.policy_of(run_id, rows[0].owner)
        if not (tell or policy.retention.selects or policy.retention.ttl_seconds):
            return
        if not tell and policy.retention.ttl_seconds is not None:
            self._look_again(run_id, rows, policy.retention.ttl_seconds)
        for kind in sorted({row.kind for row in rows}):
            try:
                await self._plan_kind({row.name: row for row in rows if row.kind == kind}, policy, plan)
            except StoreError as error:
                log.warning("retention put off run=%s kind=%s error=%s", run_id, kind, error)
                self._changed.add(run_id)

    def _look_again(self, run_id: str, rows: Iterable[CheckpointRow], ttl_seconds: float) -> None:
        """When the next one gets too old, unless every run is looked at before."""
        now = self._now()
        left = (ttl_seconds - (now - row.created_at).total_seconds() for row in rows)
        soonest = min((seconds for seconds in left if 0 < seconds <= _ALL_SECONDS), default=None)
        if soonest is not None:
            self._due[run_id] = now + timedelta(seconds=soonest)

    async def _plan_kind(self, rows: Mapping[str, CheckpointRow], policy: RetentionPolicy, plan: _Plan) -> None:
        """Rows of one run and kind, by name."""
        restored = [name for name, row in rows.items() if self._checkpoints.was_undeleted_lately(row)]
        some = next(iter(rows.values()))
        paths = {row.path: name for name, row in rows.items()}
        aliased = [paths[alias.target or ""] for alias in await self._aliases(paths, some.owner)]
        retention = _of_kind(policy.retention, some.kind, spared=[*restored, *aliased])
        if not self._trusts_ages():
            retention = replace(retention, ttl_seconds=None)
        decided = await self._decide(rows, retention)
        while (newest := _relied_on(rows, decided)) is not None and not await self._opens(newest):
            rows = {name: row for name, row in rows.items() if name != newest.name} | await self._again(newest)
            decided = await self._decide(rows, retention)
        for removal in decided.remove:
            reason = f"retention of {policy.source}: {removal.reason}"
            plan.remove.append((rows[removal.name], reason))
        plan.kept += [SweepKept(rows[kept.name].path, kept.reasons) for kept in decided.keep]

    async def _aliases(self, paths: Collection[str], owner: str) -> tuple[AliasRow, ...]:
        return await self._catalog.aliases.pointing_at(paths, owner=owner)

    async def _decide(self, rows: Mapping[str, CheckpointRow], retention: Retention) -> RetentionPlan:
        known = [_as_known(row) for row in rows.values()]
        return await asyncio.to_thread(plan_retention, known, retention, now=self._now())

    async def _opens(self, row: CheckpointRow) -> bool:
        """Whether the newest one, for which others would be removed, exists and is complete."""
        try:
            (await self._storage.open(row.archive)).close()
        except DamagedArchive as error:
            await self._verifier.found_damaged(row, str(error))
        except CheckpointMissing:
            await self._verifier.found_missing(row)
        except UnsupportedArchive:
            return True
        else:
            return True
        return False

    async def _again(self, row: CheckpointRow) -> dict[str, CheckpointRow]:
        found = await self._catalog.checkpoints.get_save(row.save_id)
        return {} if found is None else {found.name: found}

    async def _foretell(self, plan: _Plan, scope: _Scope) -> SweepReport:
        trashed = await self._catalog.trash.due(now=self._now(), limit=_MANY) if self._trusts_ages() else ()
        due = await self._checkpoints.purgeable(trashed)
        freed = [each.size_bytes for each in due if scope.holds(each.checkpoint)]
        if self._rules.trash_seconds <= 0 and plan.remove:
            in_use = await self._catalog.samplers.in_use([row.archive for row, _ in plan.remove])
            freed += [row.size_bytes for row, _ in plan.remove if row.archive not in in_use]
        removed = tuple(SweepRemoved(row.path, row.size_bytes, reason) for row, reason in plan.remove)
        return SweepReport(removed, tuple(plan.kept), len(freed), sum(freed), dry_run=True)

    async def _carry_out(self, plan: _Plan, scope: _Scope) -> SweepReport:
        removed: list[SweepRemoved] = []
        for reason in dict.fromkeys(reason for _, reason in plan.remove):
            rows = [row for row, why in plan.remove if why == reason]
            trashed = await self._checkpoints.discard(rows, reason=reason, by=_BY)
            removed += [SweepRemoved(each.path, each.size_bytes, reason) for each in trashed]
        purged = await self._checkpoints.purge_due()  # of all users, though only this scope is reported
        freed = [each.size_bytes for each in purged if scope.holds(each.checkpoint)]
        return SweepReport(tuple(removed), tuple(plan.kept), len(freed), sum(freed))


def _as_known(row: CheckpointRow) -> StoredCheckpoint:
    """The row as the library's retention rules take it."""
    if row.state == "damaged":
        return StoredCheckpoint(row.name, row.size_bytes, row.created_at, None, row.damage)
    manifest = Manifest(
        kind=row.kind,
        step=row.step,
        created_at=row.created_at,
        members=(),
        metrics=metrics_of(row.user_metadata),
        pinned=row.public,
    )
    return StoredCheckpoint(row.name, row.size_bytes, row.created_at, manifest)


def _of_kind(retention: Retention, kind: str, *, spared: Iterable[str]) -> Retention:
    """Pins may name a checkpoint of every kind, ``final``, or of one, ``weights/final``."""
    pinned = {name.removeprefix(f"{kind}/") for name in retention.pinned}
    return replace(retention, pinned=frozenset(pinned.union(spared)))


def _relied_on(rows: Mapping[str, CheckpointRow], decided: RetentionPlan) -> CheckpointRow | None:
    """The newest good one, if others are removed because it is kept."""
    good = [row for row in rows.values() if row.state == "ready"]
    if not decided.remove or not good:
        return None
    return max(good, key=lambda row: _as_known(row).order)
