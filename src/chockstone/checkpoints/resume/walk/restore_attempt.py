"""Restore attempts: open one scan result after the other, check it, and pass it to the caller's loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from chockstone.checkpoints.errors import CheckpointError, RestoreFailed, RestoreMismatch
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.claims import GenerationReference
from chockstone.checkpoints.resume.attempts.generations import (
    FoundGeneration,
    follow_reference,
    identity_of,
    read_head_of,
)
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.candidate_scanner import ScanResult
from chockstone.checkpoints.resume.walk.probing import Deadline
from chockstone.checkpoints.resume.walk.rules import ResumeRules

T = TypeVar("T")


class RestoreAttempt:
    """Tries scan results for a walk. ``found`` is the restored generation, ``error`` the error of the last try."""

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
        self.references: dict[tuple[str, str], GenerationReference] = {}  # by place and generation; their targets exist
        self.error: Exception | None = None

    def run(
        self, result: ScanResult, walk: WalkBack[ScanResult], load: Callable[[FoundGeneration], T], deadline: Deadline
    ) -> T | None:
        """Try to restore ``result`` and tell ``walk`` the verdict. Return what ``load`` returned, or None."""
        self.error = result.error
        if result.error is None and result.attempt is not None and not deadline.left:
            self.error = deadline.error(result.attempt.place.uri)
        if self.error is not None:
            walk.failed(self.error)
            return None
        found: FoundGeneration | None = None
        started: float | None = None
        try:
            found = self._open(result, walk)
            if found is None:
                return None
            verdict = Verdict.UNVERIFIED if found.generation is None else Verdict.VERIFIED
            if result.is_last_resort:
                verdict = Verdict.SUPERSEDED
            if not walk.may_take(verdict):
                walk.reject(verdict, "older than one that cannot be read: only a verified one may stand in for that")
                return None
            started = time.monotonic()
            loaded = self._load(result, found, load)
            deadline.extend(time.monotonic() - started)
        except (RestoreMismatch, RestoreFailed):
            raise  # the state does not fit the target: an older one would not fit either
        except Exception as error:  # noqa: BLE001  # judged and recorded by the walk
            if started is not None:
                deadline.extend(time.monotonic() - started)
            self.error = error
            walk.failed(error, step=found.step if found else None)
            return None
        walk.accept(step=found.step, verdict=verdict, reason=_why(result, found))
        self.found = found
        if verdict is not Verdict.VERIFIED:
            self._warn(f"{_why(result, found)} ({found.place.uri})")
        return loaded

    def _open(self, result: ScanResult, walk: WalkBack[ScanResult]) -> FoundGeneration | None:
        """Return what to load, or None after telling ``walk`` why not."""
        attempt, generation = result.attempt, result.generation
        assert attempt is not None
        if generation is None:
            return self._open_flyte_native(attempt, walk)
        if result.is_superseded:
            walk.reject(Verdict.SUPERSEDED, "committed after its writer had been superseded")
            return None
        limit = self._rules.poison_after
        if limit is not None and attempt.failed_restores(generation) >= limit:
            walk.reject(
                Verdict.POISONED,
                f"{attempt.failed_restores(generation)} restores of it were begun and did not end well",
            )
            return None
        head = read_head_of(attempt.place, generation.name)
        identity = identity_of(head.manifest)  # of the reference itself, not of its target
        if not result.candidate.may_be_foreign and (identity is None or dict(identity) != self._identity):
            why = f"it is of another chain: {identity or 'it does not say which'}"
            walk.reject(Verdict.FOREIGN, why, step=head.manifest.step)
            return None
        found = follow_reference(self._places, attempt.place, generation, head)
        if found.head is not head:
            key = attempt.place.uri, generation.name
            self.references[key] = GenerationReference(*key, found.place.uri, found.name)
        return found

    def _open_flyte_native(self, attempt: Attempt, walk: WalkBack[ScanResult]) -> FoundGeneration | None:
        """Return Flyte's native files of a place without generations, if Flyte's own checkpoint wrote them."""
        if files := attempt.flyte_native if attempt.has_usable_flyte_native() else ():
            if self._rules.legacy == "reject":
                walk.reject(Verdict.UNVERIFIED, "files without digests, and legacy='reject'")
                return None
            return FoundGeneration(attempt.place, None, flyte_native=files)
        walk.reject(*empty_verdict(attempt))
        return None

    def _load(self, result: ScanResult, found: FoundGeneration, load: Callable[[FoundGeneration], T]) -> T:
        """Load, and keep a record of it during the load if failed restores are counted."""
        attempt, generation = result.attempt, result.generation
        if self._rules.poison_after is None or attempt is None or generation is None or self._is_looking_only:
            return load(found)
        place = attempt.place
        record = f"trials/{generation.name}.{attempt.failed_restores(generation):04d}.json"
        try:
            place.put_if_absent(record, b"{}\n")
        except CheckpointError as error:
            self._warn(f"a restore from {place.uri} is not counted: {error}")
            return load(found)
        loaded = load(found)
        try:
            place.delete(record)
        except CheckpointError as error:
            self._warn(f"a successful restore from {place.uri} is counted as failed: {error}")
        return loaded


def empty_verdict(attempt: Attempt) -> tuple[Verdict, str]:
    """Return verdict and reason for a place that has nothing to restore."""
    if attempt.log.claims or attempt.listing.records:
        return Verdict.PARTIAL, "an attempt began here and committed nothing"
    if attempt.listing.exists:
        return Verdict.EMPTY, "the place is there, and nothing is in it"
    return Verdict.ABSENT, "nothing was ever written here"


def _why(result: ScanResult, found: FoundGeneration) -> str:
    if found.generation is None:
        return (
            f"{len(found.flyte_native)} files without digests, as Flyte's own checkpoint writes them: taken unverified"
        )
    if result.is_last_resort:
        return "committed after its writer had been superseded, and taken because nothing else is left"
    if result.attempt is not None and found.place.uri != result.attempt.place.uri:
        return f"a reference to {found.name} of {found.place.uri}"
    return ""
