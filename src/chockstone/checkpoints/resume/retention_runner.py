"""Keeping: which generations of a chain stay, its earlier attempts' among them.

Only what can be read and is ours counts, in the order of the walk, never by time. What is damaged is
neither counted nor removed: somebody may want to look at it. Nothing goes before enough newer ones stand,
and what another one refers to stays as long as that does. A removal that fails, fails alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    UnsupportedArchive,
)
from chockstone.checkpoints.reading.archive import Head
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import Generation
from chockstone.checkpoints.resume.attempts.flyte_native import (
    FlyteNativeFile,
    StockForm,
    check_flyte_native,
    clear_flyte_native,
)
from chockstone.checkpoints.resume.attempts.generations import FORWARD, identity_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace
from chockstone.checkpoints.resume.dependents import Key, references_of
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.retention.policy import Best, Retention

log = logging.getLogger(__name__)
LEAST: Final = 2  # good ones that always stay
_REFERENCES_AT_ONCE: Final = 4  # of attempts that were not asked; the next save removes as many
_ORPHAN_SECONDS: Final = 3600.0  # locks tell orphans from writes, age does where locks do not reach


@dataclass(frozen=True, slots=True)
class KeptGeneration:
    """A generation that counts."""

    place: AttemptPlace
    generation: Generation
    head: Head

    @property
    def key(self) -> Key:
        return self.place.uri, self.generation.name

    @property
    def is_forward(self) -> bool:
        return self.head.manifest.kind == FORWARD

    @property
    def refers_to(self) -> set[Key]:
        """Others that it cannot do without."""
        return references_of(self.place.uri, self.head.manifest)


class RetentionRunner:
    """Applies a policy after each commit of a chain."""

    def __init__(self, chain: Chain, policy: Retention) -> None:
        self._chain = chain
        self._policy = policy
        self._heads: dict[Key, Head | None] = {}  # None: not to be read
        self._has_swept = False
        self._cleared: set[str] = set()  # places whose copies for stock readers are gone
        self._damaged: set[tuple[str, str | None]] = set()  # as the restore found, whatever their heads say

    def tidy(self) -> list[Key]:
        """Remove what the policy does not keep; what was removed. Raises nothing."""
        self._sweep()
        if not self._policy.selects:
            return []  # then all stay, and nobody need look
        held = set(self._chain.held)  # before looking: what it was held for is either still to come, or listed
        try:
            good = self._good()
            doomed = [each for each in plan(good, self._policy) if each.key not in held]
            if doomed:
                self._chain.claim().check()  # a later attempt may go by what we would remove
            doomed = self._unreferred(doomed)
            self._clear_views(good, {each.key for each in doomed})
            return self._remove(doomed)
        except Exception as error:  # noqa: BLE001  # the save has succeeded, and must not look as if it had not
            log.warning("resume retention failed place=%s error=%s", self._chain.place.uri, error)
            return []

    def _unreferred(self, doomed: Sequence[KeptGeneration]) -> list[KeptGeneration]:
        """Those that no reference in an attempt that was not asked leads to, once some such references are removed."""
        keys = {each.key for each in doomed}
        leading = [each for each in self._chain.references_aside() if (each.target, each.target_generation) in keys]
        if leading:
            self._chain.remove_aside(leading[:_REFERENCES_AT_ONCE])
        needed = {(each.target, each.target_generation) for each in leading[_REFERENCES_AT_ONCE:]}
        return [each for each in doomed if each.key not in needed]

    def _clear_views(self, good: Sequence[KeptGeneration], doomed: Container[Key]) -> None:
        """Remove the copies for stock readers from earlier attempts, but for the newest one that keeps a state.

        Each attempt that saves comes past the one that was the newest before it, so copies do not pile up.
        """
        if (form := self._chain.rules.stock) is None:
            return
        real = [each for each in good if not each.is_forward and each.place.uri != self._chain.place.uri]
        newest: dict[str, KeptGeneration] = {}  # of each place
        for each in real:
            newest.setdefault(each.place.uri, each)
        staying = [uri for uri in newest if any(e.place.uri == uri and e.key not in doomed for e in real)]
        emptied = [uri for uri in newest if uri not in staying]
        for uri in (*staying[1:2], *emptied):
            if uri not in self._cleared:
                self._cleared.add(uri)
                self._clear_view(newest[uri], form)

    def _clear_view(self, shown: KeptGeneration, form: StockForm) -> None:
        manifest = shown.head.manifest
        files = {member.name: member.size for member in shown.head.layout.members}
        inherited = manifest.metadata.get("inherited")
        for each in inherited if isinstance(inherited, list) else []:
            if isinstance(each, dict) and isinstance(each.get("size"), int):
                files.setdefault(str(each.get("name")), each["size"])
        try:
            check_flyte_native([FlyteNativeFile(name, size) for name, size in files.items()])
            count = clear_flyte_native(shown.place, form, files)
        except CheckpointError as error:
            log.warning("resume stock view not cleared place=%s error=%s", shown.place.uri, error)
            return
        if count:
            log.info("resume stock view cleared place=%s files=%d", shown.place.uri, count)

    def _sweep(self) -> None:
        """Once: what killed writers of the chain left behind, where they can no longer be writing."""
        if self._has_swept:
            return
        self._has_swept = True
        for place in self._chain.to_sweep():
            try:
                for partial in place.store.sweep(min_age_seconds=_ORPHAN_SECONDS):
                    log.info("resume partial write swept place=%s bytes=%d", partial.place, partial.size)
            except CheckpointError as error:
                log.warning("resume sweep failed place=%s error=%s", place.uri, error)

    def _good(self) -> list[KeptGeneration]:
        """All that count, newest first."""
        good: list[KeptGeneration] = []
        report = self._chain.report
        self._damaged |= {
            (look.uri, look.generation) for look in (report.looked if report else ()) if look.verdict is Verdict.CORRUPT
        }
        own = Attempt.look(self._chain.place)
        for attempt in (own, *self._chain.earlier()):
            voids = attempt.voids()
            for generation in attempt.generations:
                if generation in voids or (attempt.place.uri, generation.name) in self._damaged:
                    continue
                head = self._head(attempt.place, generation)
                if head is not None and identity_of(head.manifest) == self._chain.identity:
                    good.append(KeptGeneration(attempt.place, generation, head))
        return good

    def _head(self, place: AttemptPlace, generation: Generation) -> Head | None:
        key = place.uri, generation.name
        if key not in self._heads:
            try:
                self._heads[key] = self._chain.head(place, generation.name)
            except (CheckpointMissing, DamagedArchive, ForeignArchive, UnsupportedArchive):
                self._heads[key] = None  # also where somebody else removed it
        return self._heads[key]

    def _remove(self, doomed: Sequence[KeptGeneration]) -> list[Key]:
        """In this order. What one that cannot be removed refers to stays with it."""
        removed: list[Key] = []
        needed: set[Key] = set()
        for each in doomed:
            if each.key in needed:
                needed |= each.refers_to
                continue
            try:
                if each.place.remove(each.generation.name):
                    removed.append(each.key)
                    log.info("resume generation removed place=%s name=%s", *each.key)
                self._heads[each.key] = None  # listings of earlier attempts are older than this
            except CheckpointError as error:
                needed |= each.refers_to
                log.warning("resume generation not removed place=%s name=%s error=%s", *each.key, error)
        return removed


def plan(good: Sequence[KeptGeneration], policy: Retention) -> list[KeptGeneration]:
    """What goes: references before what they refer to, then oldest first. ``good`` is newest first. Pure."""
    real = [each for each in good if not each.is_forward]
    count = max(LEAST, policy.keep_last or 0)
    different: dict[str, KeptGeneration] = {}  # by seal: a copy, a hard link even, adds nothing to fall back on
    for each in real:
        different.setdefault(each.head.seal, each)
    if policy.keep_last is None or len(different) <= count:
        return []
    newest = list(different.values())[:count]
    keep = {each.key for each in newest}
    oldest_kept = good.index(newest[-1])
    keep |= {each.key for each in good[:oldest_kept] if each.is_forward}
    keep |= {each.key for each in real if each.head.manifest.pinned or each.generation.name in policy.pinned}
    if policy.keep_every is not None:
        keep |= {each.key for each in real if (each.head.manifest.step or 1) % policy.keep_every == 0}
    if policy.keep_best is not None:
        keep |= {each.key for each in _best(real, policy.keep_best)}
    by_key = {each.key: each for each in good}
    pending = [by_key[key] for key in keep if key in by_key]
    while pending:
        for key in pending.pop().refers_to:
            if key not in keep:
                keep.add(key)
                if key in by_key:
                    pending.append(by_key[key])
    doomed = [each for each in reversed(good) if each.key not in keep]
    return sorted(doomed, key=lambda each: not each.is_forward)


def _best(real: Sequence[KeptGeneration], best: Best) -> list[KeptGeneration]:
    def metric(each: KeptGeneration) -> float:
        return each.head.manifest.metrics.get(best.metric, math.nan)

    rated = [each for each in real if not math.isnan(metric(each))]
    return sorted(rated, key=metric, reverse=best.mode == "max")[: best.count]
