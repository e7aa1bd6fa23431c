"""The candidate scanner: lists the places that may hold a checkpoint and returns what a resume can try.

It fences the earlier attempts of the chain before it counts their generations, so that none is added unnoticed. It
follows the lineage (the candidates of earlier attempts) only if nothing else can be restored: that is always older.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from chockstone.checkpoints.errors import DamagedArchive, StoreUnreachable
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import MAX_CANDIDATES, Candidate, Origin, ranked
from chockstone.checkpoints.resume.attempts.claims import (
    SETTLED,
    Claim,
    Generation,
    GenerationReference,
    SettledAttempts,
)
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeForm
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces, normalise
from chockstone.checkpoints.resume.attempts.write_lease import fence
from chockstone.checkpoints.resume.walk.probing import Deadline, probe

log = logging.getLogger(__name__)
_MOST_FENCED: Final = 16  # per start; each attempt fences those before it, so few are left
_FENCES_AT_ONCE: Final = 8
_FIRST_PROBES: Final = 2  # and twice as many each time, until an attempt tells which others are settled
_MOST_CLAIMS_READ: Final = 3  # of one place, to find out which chain it belongs to


@dataclass(frozen=True, slots=True)
class ScanResult:
    """One step of the walk: a generation, a place without generations, or a place that could not be listed."""

    candidate: Candidate
    attempt: Attempt | None
    generation: Generation | None = None
    error: Exception | None = None
    is_superseded: bool = False
    is_last_resort: bool = False


class CandidateScanner:
    """Knows the places of a chain. Not thread-safe: the chain holds its lock."""

    def __init__(
        self,
        places: AttemptPlaces,
        identity: Mapping[str, str],
        candidates: Sequence[Candidate],
        flyte_native: FlyteNativeForm | None,
        *,
        new_fence: Callable[[], Claim] | None,
        warn: Callable[[str], None],
    ) -> None:
        """``new_fence`` makes the fence to write into an earlier attempt; None: write no fences."""
        self._places = places
        self._identity = identity
        self._flyte_native = flyte_native
        self._new_fence = new_fence
        self._warn = warn
        self.left_out = 0  # candidates above the maximum
        self.candidates: list[Candidate] = []
        self.add(candidates)
        self.attempts: dict[str, Attempt] = {}  # by place
        self._traced: set[str] = set()  # places whose lineage was followed
        self.settled: dict[str, None] = {}  # places, from the record of the newest attempt that has one
        self._references: dict[tuple[str, str], GenerationReference] = {}  # in settled places, by place and generation
        self._skipped: list[Candidate] = []  # settled candidates, which were not listed

    def add(self, candidates: Sequence[Candidate]) -> None:
        everything = ranked([*self.candidates, *candidates])
        self.candidates = everything[:MAX_CANDIDATES]
        self.left_out = max(self.left_out, len(everything) - len(self.candidates))

    def earlier(self) -> list[Attempt]:
        """Return the earlier attempts of this chain that were listed, newest first."""
        origins = (Origin.DERIVED, Origin.PLATFORM, Origin.LINEAGE)
        ours = (each for each in self.candidates if each.origin in origins and not each.may_be_foreign)
        listed = (self.attempts.get(normalise(each.uri)) for each in ours)
        return [each for each in listed if each is not None]

    def scan(self, candidates: Sequence[Candidate], deadline: Deadline) -> list[ScanResult]:
        """List these places, fence those of this chain, and return everything to try, newest first."""
        candidates, probed = self._probe(candidates, deadline)
        fenced = self._fence_all(candidates, probed)
        results: list[ScanResult] = []
        for candidate, found in zip(candidates, probed, strict=True):
            if isinstance(found, Exception):
                results.append(ScanResult(candidate, None, error=found))
                continue
            attempt = self.attempts[found.place.uri] = fenced.get(found.place.uri, found)
            results += scan_results(candidate, attempt)
        return results

    def _probe(
        self, candidates: Sequence[Candidate], deadline: Deadline
    ) -> tuple[list[Candidate], list[Attempt | Exception]]:
        """List the candidates in their order. Start with the newest few, which may tell that others are settled."""
        probed: list[Candidate] = []
        results: list[Attempt | Exception] = []
        left, width = self._unsettled(candidates), _FIRST_PROBES
        while left:
            page, left = left[:width], left[width:]
            found = probe(self._places, page, deadline, self._flyte_native)
            probed += page
            results += found
            if not self.settled:
                self.read_settled([each for each in found if isinstance(each, Attempt)])
            left = self._unsettled(left)
            width = len(left) if self.settled else 2 * width
        return probed, results

    def read_settled(self, attempts: Sequence[Attempt]) -> None:
        """Read which places are settled from the newest of these attempts. Ignores records that cannot be read."""
        for attempt in attempts:
            if SETTLED in attempt.listing.records:
                with suppress(Exception):
                    record = SettledAttempts.decode(
                        attempt.place.read(SETTLED), what=f"{SETTLED} of {attempt.place.uri}"
                    )
                    if dict(record.identity) == self._identity:
                        self.settled = dict.fromkeys(record.places)
                        self._references = {each[:2]: each for each in record.references}
                        return

    def _unsettled(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates to list, and remember the settled ones for ``scan_settled``."""
        if not self.settled:
            return list(candidates)
        left: list[Candidate] = []
        for candidate in candidates:
            is_ours = candidate.origin is not Origin.USER and not candidate.may_be_foreign
            if is_ours and normalise(candidate.uri) in self.settled:
                self._skipped.append(candidate)
            else:
                left.append(candidate)
        return left

    def scan_settled(self, deadline: Deadline) -> list[ScanResult]:
        """Scan the places that were skipped because an earlier attempt recorded them as settled."""
        candidates, self._skipped, self.settled, self._references = self._skipped, [], {}, {}
        return self.scan(candidates, deadline) if candidates else []

    @property
    def skipped(self) -> list[Candidate]:
        """Candidates that were not listed because an earlier attempt recorded them as settled."""
        return list(self._skipped)

    def claimed_places(self) -> list[AttemptPlace]:
        """Return the places of all earlier attempts of this chain that started, newest first."""
        claimed = [each.place for each in self.earlier() if each.log.claims]
        return [*claimed, *(self._places.open(each.uri) for each in self._skipped)]

    def settled_attempts(self, references: Mapping[tuple[str, str], GenerationReference]) -> SettledAttempts:
        """Return the earlier attempts of this chain that later attempts need not list.

        ``references``: the known references, by place and generation.
        """
        found = [
            each.place.uri
            for each in self.earlier()
            if each.place.uri in self.settled or _is_settled(each, references)  # one of the first probes may be settled
        ]
        places = (*found, *(normalise(each.uri) for each in self._skipped))
        known = {**self._references, **references}
        live = (each for each in known.values() if each.place in places and each.target not in places)
        return SettledAttempts(self._identity, places, tuple(live))

    def skipped_references(self) -> list[GenerationReference]:
        """Return the references in places that were skipped."""
        skipped = {normalise(each.uri) for each in self._skipped}
        return [each for each in self._references.values() if each.place in skipped]

    def forget_references(self, removed: Iterable[GenerationReference]) -> None:
        for each in removed:
            self._references.pop(each[:2], None)

    def _fence_all(self, candidates: Sequence[Candidate], probed: Sequence[Attempt | Exception]) -> dict[str, Attempt]:
        """Fence the attempts of this chain, and return them as listed after the fence, by place."""
        claimed = [
            found
            for candidate, found in zip(candidates, probed, strict=True)
            if isinstance(found, Attempt)
            and candidate.origin is not Origin.USER
            and not candidate.may_be_foreign  # another chain may have the same identity, and be running
            and found.log.claims
            and not found.log.is_fenced
        ][:_MOST_FENCED]
        if self._new_fence is None or not claimed:
            return {}
        with ThreadPoolExecutor(_FENCES_AT_ONCE, "chockstone-fence") as pool:
            return {fenced.place.uri: fenced for fenced in pool.map(self._fenced, claimed)}

    def _fenced(self, attempt: Attempt) -> Attempt:
        """Warn if the fence cannot be written: the rank of the attempts decides without it."""
        if self._new_fence is None or not self._is_ours(attempt):
            return attempt
        try:
            return fence(attempt, self._new_fence())
        except Exception as error:  # noqa: BLE001  # recorded
            self._warn(f"{attempt.place.uri} could not be fenced: {error}")
            return attempt

    def _is_ours(self, attempt: Attempt) -> bool:
        for number in sorted(attempt.log.claims, reverse=True)[:_MOST_CLAIMS_READ]:
            with suppress(Exception):  # unreadable: the claim before it tells, or the place is not fenced
                claim = attempt.claim(number)
                if claim is not None:
                    return dict(claim.identity) == self._identity
        return False

    def scan_lineage(self, deadline: Deadline) -> list[ScanResult]:
        """Scan the candidates of the attempts found so far, as far as they are new."""
        known = {normalise(each.uri) for each in self.candidates}
        given: list[Candidate] = []
        results: list[ScanResult] = []
        for candidate in self.candidates:
            attempt = self.attempts.get(normalise(candidate.uri))
            if attempt is None or candidate.origin is Origin.USER or attempt.place.uri in self._traced:
                continue
            self._traced.add(attempt.place.uri)
            try:
                uris = self._given_to(attempt, deadline, is_foreign=candidate.may_be_foreign)
            except Exception as error:  # noqa: BLE001  # judged by the walk: its lineage may hold the newest checkpoint
                results.append(ScanResult(candidate, attempt, error=error))
                continue
            for uri, is_foreign in uris:
                if uri in known:
                    continue
                known.add(uri)
                if len(known) > MAX_CANDIDATES:
                    self.left_out += 1
                else:
                    given.append(Candidate(uri, Origin.LINEAGE, may_be_foreign=is_foreign))
        self.candidates += given
        return results + (self.scan(given, deadline) if given else [])

    def find_missing(
        self, results: Sequence[ScanResult], walk: WalkBack[ScanResult], deadline: Deadline
    ) -> list[ScanResult]:
        """Before a fresh start, find places of this chain whose records name a commit that is gone.

        Candidates above the maximum count as well: what they hold is unknown.
        """
        if walk.ending is not Ending.FRESH:
            return []
        missing: list[ScanResult] = []
        for result in results:
            if result.attempt is None or result.candidate.may_be_foreign or result.candidate.origin is Origin.USER:
                continue
            try:
                if not deadline.left:
                    raise deadline.error(result.attempt.place.uri)
                if (generation := result.attempt.missing_generation()) is None:
                    continue
                error: Exception = DamagedArchive(f"{generation.name} was committed here, by its records, and is gone")
            except Exception as trouble:  # noqa: BLE001  # judged by the walk
                error = trouble
            missing.append(replace(result, error=error))
        if self.left_out:
            why = f"{self.left_out} older places were not looked at: {MAX_CANDIDATES} at most are, and none holds any"
            missing.append(ScanResult(self.candidates[-1], None, error=StoreUnreachable(why)))
        return missing

    def _given_to(self, attempt: Attempt, deadline: Deadline, *, is_foreign: bool) -> list[tuple[str, bool]]:
        """Return the candidates of an attempt, newest claim first, and whether each may be of another chain.

        Raises the errors of reading the claims.
        """
        given: list[tuple[str, bool]] = []
        for number in sorted({*attempt.log.claims, *attempt.log.newest_commits}, reverse=True):
            if not deadline.left:
                raise deadline.error(attempt.place.uri)
            claim = attempt.claim(number)
            if claim is None:
                raise DamagedArchive(f"claim {number} of {attempt.place.uri} is gone, and with it where it came from")
            if claim.kind == "claim" and (is_foreign or dict(claim.identity) == self._identity):
                for uri in claim.given:
                    with suppress(ValueError):  # not a place
                        given.append((normalise(uri), is_foreign or uri in claim.foreign))
        return given


def scan_results(candidate: Candidate, attempt: Attempt) -> list[ScanResult]:
    """Return one result for each generation, or one for a place without generations."""
    if not attempt.generations:
        return [ScanResult(candidate, attempt)]
    try:
        superseded = attempt.superseded()
    except Exception as error:  # noqa: BLE001  # judged when the walk reaches it
        return [ScanResult(candidate, attempt, error=error)]
    return [ScanResult(candidate, attempt, each, is_superseded=each in superseded) for each in attempt.generations]


def _is_settled(attempt: Attempt, references: Container[tuple[str, str]]) -> bool:
    with suppress(Exception):  # then the next attempt lists the place again
        return attempt.is_settled(references)
    return False
