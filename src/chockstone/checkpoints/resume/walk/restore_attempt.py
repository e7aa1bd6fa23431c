"""Trials: one candidate after the other, opened, judged and handed to whoever can load it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from chockstone.checkpoints.errors import CheckpointError, RestoreFailed, RestoreMismatch
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import GenerationReference
from chockstone.checkpoints.resume.attempts.generations import FoundGeneration, follow, identity_of, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.candidate_scanner import Item
from chockstone.checkpoints.resume.walk.probing import Deadline
from chockstone.checkpoints.resume.walk.rules import ResumeRules

T = TypeVar("T")


class RestoreAttempt:
    """One after the other, for a walk. ``found`` is what was taken, ``trouble`` what the last one ended with."""

    def __init__(
        self,
        places: AttemptPlaces,
        identity: Mapping[str, str],
        rules: ResumeRules,
        *,
        warn: Callable[[str], None],
        is_looking_only: bool,
    ) -> None:
        self._places = places
        self._identity = identity
        self._rules = rules
        self._warn = warn
        self._is_looking_only = is_looking_only
        self.found: FoundGeneration | None = None
        self.references: dict[
            tuple[str, str], GenerationReference
        ] = {}  # by place and generation; what they name is there
        self.trouble: Exception | None = None

    def run(
        self, item: Item, walk: WalkBack[Item], load: Callable[[FoundGeneration], T], deadline: Deadline
    ) -> T | None:
        self.trouble = item.error
        if item.error is None and item.attempt is not None and not deadline.left:
            self.trouble = deadline.trouble(item.attempt.place.uri)
        if self.trouble is not None:
            walk.failed(self.trouble)
            return None
        found: FoundGeneration | None = None
        looked: float | None = None
        try:
            found = self._found(item, walk)
            if found is None:
                return None
            verdict = Verdict.UNVERIFIED if found.generation is None else Verdict.VERIFIED
            if item.is_last_resort:
                verdict = Verdict.SUPERSEDED
            if not walk.may_take(verdict):
                walk.reject(verdict, "older than one that cannot be read: only a verified one may stand in for that")
                return None
            looked = time.monotonic()
            loaded = self._loaded(item, found, load)
            deadline.extend(time.monotonic() - looked)
        except (RestoreMismatch, RestoreFailed):
            raise  # the state and the target differ: no older one would fit any better
        except Exception as error:  # noqa: BLE001  # judged, and kept in the walk
            if looked is not None:
                deadline.extend(time.monotonic() - looked)
            self.trouble = error
            walk.failed(error, step=found.step if found else None)
            return None
        walk.accept(step=found.step, verdict=verdict, reason=_why(item, found))
        self.found = found
        if verdict is not Verdict.VERIFIED:
            self._warn(f"{_why(item, found)} ({found.place.uri})")
        return loaded

    def _found(self, item: Item, walk: WalkBack[Item]) -> FoundGeneration | None:
        attempt, generation = item.attempt, item.generation
        assert attempt is not None
        if generation is None:
            return self._stock(attempt, walk)
        if item.is_void:
            walk.reject(Verdict.SUPERSEDED, "committed after its writer had been superseded")
            return None
        limit = self._rules.poison_after
        if limit is not None and attempt.trials(generation) >= limit:
            walk.reject(
                Verdict.POISONED, f"{attempt.trials(generation)} restores of it were begun and did not end well"
            )
            return None
        head = read_head_of(attempt.place, generation.name)
        identity = identity_of(head.manifest)  # a reference is ours if we wrote it, whosever it refers to
        if not item.candidate.may_be_foreign and (identity is None or dict(identity) != self._identity):
            why = f"it is of another chain: {identity or 'it does not say which'}"
            walk.reject(Verdict.FOREIGN, why, step=head.manifest.step)
            return None
        found = follow(self._places, attempt.place, generation, head)
        if found.head is not head:
            key = attempt.place.uri, generation.name
            self.references[key] = GenerationReference(*key, found.place.uri, found.name)
        return found

    def _stock(self, attempt: Attempt, walk: WalkBack[Item]) -> FoundGeneration | None:
        """A place without generations: what a stock writer left there, or nothing."""
        if files := attempt.stock if attempt.has_stock_that_counts() else ():
            if self._rules.legacy == "reject":
                walk.reject(Verdict.UNVERIFIED, "files without digests, and legacy='reject'")
                return None
            return FoundGeneration(attempt.place, None, stock=files)
        walk.reject(*nothing_in(attempt))
        return None

    def _loaded(self, item: Item, found: FoundGeneration, load: Callable[[FoundGeneration], T]) -> T:
        if self._rules.poison_after is None or item.attempt is None or item.generation is None or self._is_looking_only:
            return load(found)
        place = item.attempt.place
        trial = f"trials/{item.generation.name}.{item.attempt.trials(item.generation):04d}.json"
        try:
            place.put_if_absent(trial, b"{}\n")
        except CheckpointError as error:
            self._warn(f"a restore from {place.uri} is not counted: {error}")
            return load(found)
        loaded = load(found)
        try:
            place.delete(trial)
        except CheckpointError as error:
            self._warn(f"a restore from {place.uri} that ended well is counted as if it had not: {error}")
        return loaded


def nothing_in(attempt: Attempt) -> tuple[Verdict, str]:
    """What to say of a place that has nothing to restore."""
    if attempt.log.claims or attempt.listing.records:
        return Verdict.PARTIAL, "an attempt began here and committed nothing"
    if attempt.listing.exists:
        return Verdict.EMPTY, "the place is there, and nothing is in it"
    return Verdict.ABSENT, "nothing was ever written here"


def _why(item: Item, found: FoundGeneration) -> str:
    if found.generation is None:
        return f"{len(found.stock)} files without digests, as a stock writer leaves them: taken unverified"
    if item.is_last_resort:
        return "committed after its writer had been superseded, and taken because nothing else is left"
    if item.attempt is not None and found.place.uri != item.attempt.place.uri:
        return f"a reference to {found.name} of {found.place.uri}"
    return ""
