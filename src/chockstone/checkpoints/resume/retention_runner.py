"""Retention of a chain: removes old generations of this attempt and of earlier ones.

It counts only readable generations of this chain, in the order of the walk, never by time. It neither counts nor
removes damaged ones, which someone may want to examine. It removes a generation only after enough newer ones exist,
and keeps the target of a reference as long as the reference. A removal that fails does not fail the save.
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
    FlyteNativeForm,
    check_flyte_native,
    clear_flyte_native,
)
from chockstone.checkpoints.resume.attempts.generations import FORWARD, identity_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace
from chockstone.checkpoints.resume.dependents import Key, references_of
from chockstone.checkpoints.resume.walk.chain import Chain
from chockstone.checkpoints.retention.policy import Best, Retention

log = logging.getLogger(__name__)
LEAST: Final = 2  # readable generations that always stay
_REFERENCES_AT_ONCE: Final = 4  # of settled attempts; the next save removes as many
_ORPHAN_SECONDS: Final = 3600.0  # minimum age of a partial file to sweep, where locks do not show its writer


@dataclass(frozen=True, slots=True)
class KeptGeneration:
    """A readable generation of the chain."""

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
        """Other generations that it needs."""
        return references_of(self.place.uri, self.head.manifest)


class RetentionRunner:
    """Applies a policy after each commit of a chain."""

    def __init__(self, chain: Chain, policy: Retention) -> None:
        self._chain = chain
        self._policy = policy
        self._heads: dict[Key, Head | None] = {}  # None: unreadable
        self._has_swept = False
        self._cleared: set[str] = set()  # places whose copies for Flyte were removed
        self._damaged: set[tuple[str, str | None]] = set()  # found by the restore; their heads may be fine

    def tidy(self) -> list[Key]:
        """Remove what the policy does not keep, and return it. Raises nothing."""
        self._sweep()
        if not self._policy.selects:
            return []  # the policy keeps everything
        held = set(self._chain.held)  # before the listing, so that a forward that ends meanwhile is in the listing
        try:
            readable = self._readable()
            to_remove = [each for each in plan(readable, self._policy) if each.key not in held]
            if to_remove:
                self._chain.claim().check()  # a later attempt may resume from what we would remove
            to_remove = self._unreferenced(to_remove)
            self._clear_flyte_native(readable, {each.key for each in to_remove})
            return self._remove(to_remove)
        except Exception as error:  # noqa: BLE001  # the save has succeeded, and must not fail because of this
            log.warning("resume retention failed place=%s error=%s", self._chain.place.uri, error)
            return []

    def _unreferenced(self, to_remove: Sequence[KeptGeneration]) -> list[KeptGeneration]:
        """Remove some references in settled attempts, and return the generations that no remaining one refers to."""
        keys = {each.key for each in to_remove}
        leading = [each for each in self._chain.skipped_references() if (each.target, each.target_generation) in keys]
        if leading:
            self._chain.remove_skipped_references(leading[:_REFERENCES_AT_ONCE])
        needed = {(each.target, each.target_generation) for each in leading[_REFERENCES_AT_ONCE:]}
        return [each for each in to_remove if each.key not in needed]

    def _clear_flyte_native(self, readable: Sequence[KeptGeneration], to_remove: Container[Key]) -> None:
        """Remove the copies for Flyte from earlier attempts, except the newest one that keeps a generation.

        Each attempt that saves clears the attempt that was the newest before it, so copies do not pile up.
        """
        if (form := self._chain.rules.flyte_native) is None:
            return
        real = [each for each in readable if not each.is_forward and each.place.uri != self._chain.place.uri]
        newest: dict[str, KeptGeneration] = {}  # of each place
        for each in real:
            newest.setdefault(each.place.uri, each)
        staying = [uri for uri in newest if any(e.place.uri == uri and e.key not in to_remove for e in real)]
        emptied = [uri for uri in newest if uri not in staying]
        for uri in (*staying[1:2], *emptied):
            if uri not in self._cleared:
                self._cleared.add(uri)
                self._clear_copies(newest[uri], form)

    def _clear_copies(self, shown: KeptGeneration, form: FlyteNativeForm) -> None:
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
            log.warning("resume copies for Flyte not removed place=%s error=%s", shown.place.uri, error)
            return
        if count:
            log.info("resume copies for Flyte removed place=%s files=%d", shown.place.uri, count)

    def _sweep(self) -> None:
        """Once per process: remove old partial files of killed writers."""
        if self._has_swept:
            return
        self._has_swept = True
        for place in self._chain.to_sweep():
            try:
                for partial in place.store.sweep(min_age_seconds=_ORPHAN_SECONDS):
                    log.info("resume partial write swept place=%s bytes=%d", partial.place, partial.size)
            except CheckpointError as error:
                log.warning("resume sweep failed place=%s error=%s", place.uri, error)

    def _readable(self) -> list[KeptGeneration]:
        """Return all readable generations of the chain that are not superseded, newest first."""
        readable: list[KeptGeneration] = []
        report = self._chain.report
        looked = report.looked if report else ()
        self._damaged |= {(each.uri, each.generation) for each in looked if each.verdict is Verdict.CORRUPT}
        own = Attempt.inspect(self._chain.place)
        for attempt in (own, *self._chain.earlier()):
            superseded = attempt.superseded()
            for generation in attempt.generations:
                if generation in superseded or (attempt.place.uri, generation.name) in self._damaged:
                    continue
                head = self._head(attempt.place, generation)
                if head is not None and identity_of(head.manifest) == self._chain.identity:
                    readable.append(KeptGeneration(attempt.place, generation, head))
        return readable

    def _head(self, place: AttemptPlace, generation: Generation) -> Head | None:
        key = place.uri, generation.name
        if key not in self._heads:
            try:
                self._heads[key] = self._chain.head(place, generation.name)
            except (CheckpointMissing, DamagedArchive, ForeignArchive, UnsupportedArchive):
                self._heads[key] = None  # also if another process removed it
        return self._heads[key]

    def _remove(self, generations: Sequence[KeptGeneration]) -> list[Key]:
        """Remove in this order. If a generation cannot be removed, keep what it refers to."""
        removed: list[Key] = []
        needed: set[Key] = set()
        for each in generations:
            if each.key in needed:
                needed |= each.refers_to
                continue
            try:
                if each.place.remove(each.generation.name):
                    removed.append(each.key)
                    log.info("resume generation removed place=%s name=%s", *each.key)
                self._heads[each.key] = None  # older listings still contain it
            except CheckpointError as error:
                needed |= each.refers_to
                log.warning("resume generation not removed place=%s name=%s error=%s", *each.key, error)
        return removed


def plan(readable: Sequence[KeptGeneration], policy: Retention) -> list[KeptGeneration]:
    """Return what to remove: references before their targets, oldest first. ``readable`` is newest first. Pure."""
    real = [each for each in readable if not each.is_forward]
    count = max(LEAST, policy.keep_last or 0)
    different: dict[str, KeptGeneration] = {}  # by seal: a copy or hard link of an archive does not count twice
    for each in real:
        different.setdefault(each.head.seal, each)
    if policy.keep_last is None or len(different) <= count:
        return []
    newest = list(different.values())[:count]
    keep = {each.key for each in newest}
    oldest_kept = readable.index(newest[-1])
    keep |= {each.key for each in readable[:oldest_kept] if each.is_forward}
    keep |= {each.key for each in real if each.head.manifest.pinned or each.generation.name in policy.pinned}
    if policy.keep_every is not None:
        keep |= {each.key for each in real if (each.head.manifest.step or 1) % policy.keep_every == 0}
    if policy.keep_best is not None:
        keep |= {each.key for each in _best(real, policy.keep_best)}
    by_key = {each.key: each for each in readable}
    pending = [by_key[key] for key in keep if key in by_key]
    while pending:
        for key in pending.pop().refers_to:
            if key not in keep:
                keep.add(key)
                if key in by_key:
                    pending.append(by_key[key])
    to_remove = [each for each in reversed(readable) if each.key not in keep]
    return sorted(to_remove, key=lambda each: not each.is_forward)


def _best(real: Sequence[KeptGeneration], best: Best) -> list[KeptGeneration]:
    def metric(each: KeptGeneration) -> float:
        return each.head.manifest.metrics.get(best.metric, math.nan)

    rated = [each for each in real if not math.isnan(metric(each))]
    return sorted(rated, key=metric, reverse=best.mode == "max")[: best.count]
