"""Retention policies: which checkpoints are kept and which are removed, decided as data.

Rules apply to each folder and kind separately. A checkpoint is kept if any rule keeps it. All are kept where there is
no rule, or only a rule on a metric that no checkpoint has. Expired checkpoints are removed whatever other rules say,
unless they are pinned. Damaged checkpoints are neither counted nor removed. The newest sound one is never removed.

For chains of attempts: superseded archives are not counted, and are removed if any rule selects. References are kept
while too few newer saves of their attempt exist. What a kept archive depends on is kept. Saves of an attempt are
ordered by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from chockstone.checkpoints.retention.chain_facts import NO_CHAIN, ChainFacts, Dependent

if TYPE_CHECKING:
    from chockstone.checkpoints.reading.listing import StoredCheckpoint


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the ``count`` best by a metric that was given to ``save``."""

    metric: str
    mode: Literal["min", "max"] = "min"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay. A checkpoint that any rule selects stays; without a rule, only an expired one is deleted.

    A policy counts each run and kind on its own, and never deletes a pinned checkpoint or the newest one.
    """

    keep_last: int | None = None
    keep_every: int | None = None  # steps divisible by this
    keep_best: Best | None = None
    pinned: frozenset[str] = frozenset()  # names, as the store lists them
    ttl_seconds: float | None = None  # for all; an archive may have its own besides

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every", "ttl_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r} is not positive; leave it out to have no such rule")
        if self.keep_best is not None and self.keep_best.count < 1:
            raise ValueError(f"keep_best.count={self.keep_best.count!r} is not positive")

    @property
    def selects(self) -> bool:
        """Whether any rule selects what is kept; without one only expiry removes."""
        return self.keep_last is not None or self.keep_every is not None or self.keep_best is not None


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    name: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    keep: tuple[KeptCheckpoint, ...]
    remove: tuple[Removal, ...]
    damaged: tuple[str, ...] = ()  # among those kept

    @property
    def freed_bytes(self) -> int:
        return sum(removal.size for removal in self.remove)


def plan_retention(
    checkpoints: Sequence[StoredCheckpoint], policy: Retention, *, now: datetime, chain_facts: ChainFacts = NO_CHAIN
) -> RetentionPlan:
    """Decide for each listed checkpoint. Pure: the same list gives the same plan.

    Checkpoints compete only within their folder and kind: a policy over several runs applies to each run, and sampler
    weights never displace training state.
    """
    groups: dict[tuple[str, str], list[StoredCheckpoint]] = {}
    apart: list[StoredCheckpoint] = []
    for checkpoint in checkpoints:
        if checkpoint.manifest is not None and checkpoint.name in chain_facts.superseded | chain_facts.references:
            apart.append(checkpoint)
            continue
        folder, kind = checkpoint.name.rpartition("/")[0], checkpoint.manifest.kind if checkpoint.manifest else ""
        groups.setdefault((folder, kind), []).append(checkpoint)
    plans = [_plan_group(group, policy, now, chain_facts) for group in groups.values()]
    decided = RetentionPlan(
        tuple(kept for plan in plans for kept in plan.keep),
        tuple(removal for plan in plans for removal in plan.remove),
        tuple(name for plan in plans for name in plan.damaged),
    )
    return _with_chains(decided, checkpoints, apart, policy, now, chain_facts) if chain_facts.numbers else decided


def _with_chains(
    plan: RetentionPlan,
    checkpoints: Sequence[StoredCheckpoint],
    apart: Sequence[StoredCheckpoint],
    policy: Retention,
    now: datetime,
    chain_facts: ChainFacts,
) -> RetentionPlan:
    """The plan with references and superseded archives in it, and without removals that would break a kept archive."""
    by_name = {checkpoint.name: checkpoint for checkpoint in checkpoints}
    stays = {kept.name for kept in plan.keep} - set(plan.damaged)
    chains_left = {chain_facts.chains.get(name) for name in stays} - {None}
    keep, remove = list(plan.keep), list(plan.remove)
    for checkpoint in apart:
        is_superseded = checkpoint.name in chain_facts.superseded
        is_expired = _is_expired(checkpoint, policy, now)
        if checkpoint.name in policy.pinned or (checkpoint.manifest and checkpoint.manifest.pinned):
            why = "pinned"
        elif not policy.selects and not is_expired:
            why = "no rule removes it"
        elif is_superseded and chain_facts.chains.get(checkpoint.name) not in chains_left:
            why = "superseded, but no other save of the run is left here"
        elif not is_superseded and _newer(checkpoint, by_name.values(), chain_facts) < (policy.keep_last or 1):
            why = "a reference that its attempt restarts from"
        else:
            reason = "superseded" if is_superseded else "a reference that newer saves replace"
            remove.append(Removal(checkpoint.name, checkpoint.size, "expired" if is_expired else reason))
            continue
        keep.append(KeptCheckpoint(checkpoint.name, (why,)))
    needed = chain_facts.needed([removal.name for removal in remove])
    keep += [KeptCheckpoint(name, (f"{_spell(by)} depends on it",)) for name, by in needed.items()]
    going = {removal.name: removal for removal in remove if removal.name not in needed}
    return RetentionPlan(tuple(keep), tuple(going[name] for name in chain_facts.in_removal_order(going)), plan.damaged)


def _newer(reference: StoredCheckpoint, checkpoints: Iterable[StoredCheckpoint], chain_facts: ChainFacts) -> int:
    """How many saves of the same attempt are newer and count."""
    folder, others = reference.name.rpartition("/")[0], chain_facts.superseded | chain_facts.references
    return sum(
        c.manifest is not None
        and c.name.rpartition("/")[0] == folder
        and c.name not in others
        and chain_facts.number(c.name) > chain_facts.number(reference.name)
        for c in checkpoints
    )


def _spell(dependents: Sequence[Dependent]) -> str:
    more = f" and {len(dependents) - 1} more" if len(dependents) > 1 else ""
    return f"{dependents[0]}{more}"


def _plan_group(
    checkpoints: Sequence[StoredCheckpoint], policy: Retention, now: datetime, chain_facts: ChainFacts
) -> RetentionPlan:
    alive = (c for c in checkpoints if c.manifest is not None)
    good = sorted(alive, key=lambda c: (chain_facts.number(c.name), c.order))
    reasons: dict[str, list[str]] = {c.name: [] for c in checkpoints}
    for checkpoint in checkpoints:
        if checkpoint.manifest is None:
            why = "of a newer format" if checkpoint.is_newer else "damaged: kept for you to look at"
            reasons[checkpoint.name].append(why)
    if good:
        reasons[good[-1].name].append("newest good one")
    for checkpoint in good:
        if checkpoint.name in policy.pinned or (checkpoint.manifest and checkpoint.manifest.pinned):
            reasons[checkpoint.name].append("pinned")
    expired = {c.name for c in good if _is_expired(c, policy, now)}
    for name, reason in _chosen([c for c in good if c.name not in expired], policy):
        reasons[name].append(reason)
    keep = tuple(KeptCheckpoint(name, tuple(why)) for name, why in reasons.items() if why)
    remove = tuple(
        Removal(c.name, c.size, "expired" if c.name in expired else "no rule keeps it")
        for c in good
        if not reasons[c.name]
    )
    damaged = tuple(c.name for c in checkpoints if c.manifest is None and not c.is_newer)
    return RetentionPlan(keep, remove, damaged)


def _chosen(alive: Sequence[StoredCheckpoint], policy: Retention) -> list[tuple[str, str]]:
    if not policy.selects:
        return [(c.name, "no rule removes it") for c in alive]
    chosen: list[tuple[str, str]] = []
    if policy.keep_last is not None:
        chosen += [(c.name, f"among the last {policy.keep_last}") for c in alive[-policy.keep_last :]]
    if policy.keep_every is not None:
        chosen += [(c.name, f"step divisible by {policy.keep_every}") for c in alive if _divides(policy.keep_every, c)]
    if policy.keep_best is not None:
        best = policy.keep_best
        rated = [c for c in alive if not math.isnan(_metric(c, best.metric))]
        if not rated and policy.keep_last is None and policy.keep_every is None:
            return [(c.name, f"none has the metric {best.metric!r}, so the rule cannot choose") for c in alive]
        rated.sort(key=lambda c: _metric(c, best.metric), reverse=best.mode == "max")
        chosen += [(c.name, f"best by {best.metric}") for c in rated[: best.count]]
    return chosen


def _is_expired(checkpoint: StoredCheckpoint, policy: Retention, now: datetime) -> bool:
    manifest = checkpoint.manifest
    if manifest is None:
        return False
    age_seconds = (now - manifest.created_at).total_seconds()
    return manifest.is_expired(now) or (policy.ttl_seconds is not None and age_seconds >= policy.ttl_seconds)


def _divides(every: int, checkpoint: StoredCheckpoint) -> bool:
    step = checkpoint.manifest.step if checkpoint.manifest else None
    return step is not None and step % every == 0


def _metric(checkpoint: StoredCheckpoint, name: str) -> float:
    return checkpoint.manifest.metrics.get(name, math.nan) if checkpoint.manifest else math.nan
