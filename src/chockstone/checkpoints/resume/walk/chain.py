"""Chains: all attempts of one task, and the choice of the saved state that the newest attempt resumes from.

A chain claims its own place, lists every place that may hold a checkpoint, and walks back from the newest. It reads no
payload itself: ``walk`` passes each candidate to a loader, and judges the loader's error. After a refusal it accepts
no save until ``acknowledge_fresh_start``, because the next save would rank before the state that could not be read.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from chockstone.checkpoints.errors import (
    RestoreFailed,
    RestoreMismatch,
    ResumeBlocked,
    ResumeError,
    ResumeExhausted,
    StoreDenied,
    StoreError,
    Superseded,
)
from chockstone.checkpoints.reading.archive import Head
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.claims import (
    SETTLED,
    Claim,
    Generation,
    GenerationReference,
    Kind,
    SettledAttempts,
)
from chockstone.checkpoints.resume.attempts.cost import CostSnapshot
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FoundGeneration, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces, BucketPlace, normalise
from chockstone.checkpoints.resume.attempts.write_lease import FencedStore, WriteLease, new_claim
from chockstone.checkpoints.resume.walk.candidate_scanner import CandidateScanner, ScanResult, scan_results
from chockstone.checkpoints.resume.walk.probing import Deadline
from chockstone.checkpoints.resume.walk.report import RECORD, Outcome, ResumeReport
from chockstone.checkpoints.resume.walk.reporter import ResumeReporter, blocked, broken_off, exhausted, unfit
from chockstone.checkpoints.resume.walk.restore_attempt import RestoreAttempt
from chockstone.checkpoints.resume.walk.rules import ResumeRules

log = logging.getLogger(__name__)
T = TypeVar("T")


class Chain:
    """The chain as one attempt sees it. Thread-safe. Does no I/O before the first call that needs it."""

    def __init__(
        self,
        places: AttemptPlaces,
        own: str,
        *,
        identity: Mapping[str, str],
        attempt: int | None = None,
        candidates: Sequence[Candidate] = (),
        rules: ResumeRules = ResumeRules(),  # noqa: B008  # frozen
        notes: Sequence[str] = (),
        started_since: Callable[[], Sequence[Candidate]] = lambda: (),
        is_looking_only: bool = False,
        since: CostSnapshot | None = None,
    ) -> None:
        """``is_looking_only``: write no claims, fences or records.

        ``started_since`` is called after the place is claimed. It returns the attempts that started since
        ``candidates`` were listed, and raises Superseded if one of them is later than this attempt. So of two attempts
        that start at the same time, at least one sees the other.

        ``since``: the cost of ``places`` before the first request for this chain; None: its present cost.
        """
        self._places = places
        self.place = places.open(own)
        self.identity = dict(identity)
        self.attempt = attempt
        self.rules = rules
        self.report: ResumeReport | None = None
        self._heads: dict[tuple[str, str], Head] = {}
        self.held: set[tuple[str, str]] = set()  # places and generations that a running forward will refer to
        self._started_since = started_since
        self._is_looking_only = is_looking_only
        self._lock = threading.RLock()
        self._lease: WriteLease | None = None
        self._unclaimed: Exception | None = None  # why our own place could not be claimed
        self._next = 0
        self._block: ResumeError | None = None
        self._is_fresh = False
        self._is_undecided = False  # a restore is running, or was interrupted
        self._written_settled: SettledAttempts | None = None
        self._results: list[ScanResult] = []  # in the order of the walk; after a choice, from the choice on
        self._reporter = ResumeReporter(notes, places.cost, since)
        self._scanner = CandidateScanner(
            places,
            self.identity,
            [Candidate(self.place.uri, Origin.OWN, attempt), *candidates],
            rules.flyte_native,
            new_fence=None if is_looking_only else lambda: self._entry("fence"),
            warn=self._reporter.warn,
        )
        self._restore_attempt = RestoreAttempt(
            places, self.identity, rules, warn=self._reporter.warn, is_looking_only=is_looking_only
        )

    def claim(self) -> WriteLease:
        """Claim the place, on the first call. Raises Superseded if a later attempt fenced it, or StoreError."""
        with self._lock:
            if self._unclaimed is not None:
                raise self._unclaimed
            if self._lease is None:
                attempt = self._scanner.attempts.get(self.place.uri) or Attempt.inspect(
                    self.place, self.rules.flyte_native
                )
                had_flyte_native = bool(attempt.flyte_native) and not attempt.log.claims
                lease = WriteLease.claim(attempt, self._entry("claim", had_flyte_native=had_flyte_native))
                self._scanner.attempts[self.place.uri] = lease.attempt
                self._scanner.add(self._started_since())
                newest = max((each.number for each in lease.attempt.generations), default=0)
                self._lease, self._next = lease, newest + 1
            return self._lease

    def _entry(self, kind: Kind, *, had_flyte_native: bool = False) -> Claim:
        others = [each for each in self._scanner.candidates if kind == "claim" and each.origin is not Origin.OWN]
        return new_claim(
            kind,
            by=self.place.uri,
            attempt=self.attempt,
            identity=self.identity,
            given=tuple(normalise(each.uri) for each in others),
            foreign=tuple(normalise(each.uri) for each in others if each.may_be_foreign),
            had_flyte_native=had_flyte_native,
        )

    @property
    def store(self) -> FencedStore:
        """Return the store for generations of this attempt. It commits only while we hold the lease."""
        return FencedStore(self.place.store, self.claim())

    def store_with(self, on_commit: Callable[[], object]) -> FencedStore:
        """As ``store``; ``on_commit`` is called after each successful commit, in the thread that made it."""
        return FencedStore(self.place.store, self.claim(), on_commit)

    def begin(self) -> Generation:
        """Return the number of the next generation. Raises the error that blocks the chain."""
        with self._lock:
            if self._block is not None:
                raise self._block
            if self._is_undecided:
                raise broken_off()
            lease = self.claim()
            if lease.is_lost:
                lease.check()  # raises, before anything is written in vain
            self._next += 1
            return Generation(self._next - 1, lease.number)

    @property
    def metadata(self) -> dict[str, object]:
        """The metadata of every archive of the chain."""
        return {CHAIN: {"identity": self.identity, "attempt": self.attempt}}

    @property
    def found(self) -> FoundGeneration | None:
        """The generation that was restored or chosen."""
        return self._restore_attempt.found

    def head(self, place: AttemptPlace, name: str) -> Head:
        """Return the head of a committed archive. Reads each once, since it never changes. Raises read errors."""
        key = place.uri, name
        if key not in self._heads:
            found = self._restore_attempt.found
            is_found = found is not None and found.generation is not None and (found.place.uri, found.name) == key
            self._heads[key] = found.head if found and is_found and found.head else read_head_of(place, name)
        return self._heads[key]

    def earlier(self) -> list[Attempt]:
        """Return the earlier attempts of this chain that were listed, newest first, for retention.

        Returns [] after a fresh start: it must not remove checkpoints that it did not resume from.
        """
        with self._lock:
            if self._is_fresh:
                return []
            return [each for each in self._scanner.earlier() if each.place.uri != self.place.uri]

    def skipped_references(self) -> list[GenerationReference]:
        """Return the references in settled attempts, which were not listed."""
        with self._lock:
            return [] if self._is_fresh else self._scanner.skipped_references()

    def remove_skipped_references(self, references: Sequence[GenerationReference]) -> None:
        """Remove these references and update the record of settled attempts. Raises StoreError at the first failure."""
        removed: list[GenerationReference] = []
        try:
            for each in references:
                self._places.open(each.place).remove(each.generation)
                removed.append(each)
        finally:
            with self._lock:
                self._scanner.forget_references(removed)
                self._write_settled()

    def to_sweep(self) -> list[AttemptPlace]:
        """Return the places of this chain where killed writers may have left partial files.

        In a bucket each place costs a request, so an attempt sweeps one random earlier place only.
        """
        with self._lock:
            others = [] if self._is_fresh else self._scanner.claimed_places()
            is_restarted = self._lease is None or self._lease.number > 1
        if isinstance(self.place, BucketPlace) and others:
            others = [secrets.choice(others)]
        return [self.place, *others] if is_restarted else others

    def acknowledge_fresh_start(self) -> None:
        """Start from zero although something could not be read: saves from now on rank before it."""
        with self._lock:
            self._block = self._unclaimed = None
            self._is_fresh, self._is_undecided = True, False
            log.warning("resume fresh start acknowledged place=%s", self.place.uri)

    def resolve(self) -> ResumeReport:
        """Choose what to restore, reading metadata only. Raises ResumeBlocked or ResumeExhausted."""
        self.walk(lambda found: found, outcome="resolved")
        assert self.report is not None
        return self.report

    def explain(self) -> ResumeReport:
        """As ``resolve``, but return the report instead of raising."""
        with suppress(ResumeBlocked, ResumeExhausted):
            self.resolve()
        assert self.report is not None
        return self.report

    def walk(self, load: Callable[[FoundGeneration], T], *, outcome: Outcome = "restored") -> T | None:
        """Return the result of ``load`` for the newest candidate that it accepts, or None for a fresh start.

        The choice is final: a second call passes the same candidate to ``load``, or raises the same error. Only after a
        failure of our own disk it tries again, and until that succeeds it accepts no save.
        """
        with self._lock:
            if self._block is not None and not _is_local(self._block):
                raise self._block
            if self._is_fresh or self.rules.fresh_start:
                self._is_fresh = True
                if self.report is None:
                    self._finish(WalkBack[ScanResult](), "fresh")
                return None
            if self._block is not None:
                self._results, self._unclaimed = [], None  # scan again after a failure of our own disk
            if outcome == "restored":
                self._is_undecided = True  # Ctrl-C may end the restore: then a save must not rank before its choice
            try:
                loaded = self._walk(load, outcome)
            except (ResumeBlocked, ResumeExhausted, Superseded, RestoreMismatch, RestoreFailed) as error:
                self._block = error if isinstance(error, ResumeError) else unfit(error)
                raise
            self._block = None
            if outcome == "restored" or self._is_fresh:
                self._is_undecided = False
            return loaded

    def _walk(self, load: Callable[[FoundGeneration], T], outcome: Outcome) -> T | None:
        self._reporter.begin()
        deadline = Deadline(self.rules.deadline_seconds)
        results = list(self._results or self._first_results(deadline))
        walk = WalkBack(results, on_unreadable=self.rules.on_unreadable)
        last_resorts = [result for result in results if result.is_superseded]
        loaded: T | None = None
        while True:
            for result in walk:
                before = len(walk.judged)
                loaded = self._restore_attempt.run(result, walk, load, deadline)
                if len(walk.judged) > before:
                    self._reporter.record(result, walk, self._restore_attempt.error)
            if walk.is_over:
                break
            if more := self._scanner.scan_lineage(deadline) or self._scanner.scan_settled(deadline):
                results += more
                last_resorts += [result for result in more if result.is_superseded]
                walk.add(more)
            elif last_resorts:
                walk.add(replace(result, is_superseded=False, is_last_resort=True) for result in last_resorts)
                last_resorts = []
            elif missing := self._scanner.find_missing(results, walk, deadline):
                walk.add(missing)
            else:
                break
        choice = walk.choice.candidate if walk.choice is not None and outcome == "restored" else None
        self._results = results[results.index(choice) :] if choice in results else results
        if walk.ending is not Ending.BLOCKED and self._lease is not None:
            with suppress(StoreError):  # a newer process may have removed what we should have found
                self._lease.check()
        self._conclude(walk, outcome, results)
        return loaded

    def _first_results(self, deadline: Deadline) -> list[ScanResult]:
        """Scan our own place, claim it, and scan the candidates that are known then."""
        if self._is_looking_only:
            return self._scanner.scan(self._scanner.candidates, deadline)
        found = self._claim_own()
        if isinstance(found, Attempt):
            self._scanner.read_settled([found])  # by an earlier process of this attempt
        own, *others = self._scanner.candidates
        results = scan_results(own, found) if isinstance(found, Attempt) else [ScanResult(own, None, error=found)]
        return results + self._scanner.scan(others, deadline)

    def _claim_own(self) -> Attempt | Exception:
        """Return our own place, claimed. If we may read and not write it, warn: a restore may still succeed.

        Then nothing can be saved, even if writing becomes possible: another attempt may have resumed meanwhile.
        """
        attempts = self._scanner.attempts
        try:
            attempt = attempts.get(self.place.uri) or Attempt.inspect(self.place, self.rules.flyte_native)
        except Exception as error:  # noqa: BLE001  # judged when the walk reaches it
            return error
        attempts[self.place.uri] = attempt
        try:
            return self.claim().attempt
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001  # as above
            self._unclaimed = error
            if not isinstance(error, StoreDenied):
                return error
            self._reporter.warn(f"{self.place.uri} could not be claimed, so nothing can be saved there: {error}")
            return attempt

    def _conclude(self, walk: WalkBack[ScanResult], outcome: Outcome, results: Sequence[ScanResult]) -> None:
        """Report how the walk ended, and raise if it found nothing usable."""
        match walk.ending:
            case Ending.TAKEN:
                self._write_settled()  # before the report, which counts it
                self._finish(walk, outcome, results)
            case Ending.FRESH:
                self._is_fresh = True
                self._finish(walk, "fresh", results)
            case Ending.EXHAUSTED:
                raise exhausted(self._finish(walk, "exhausted", results))
            case Ending.BLOCKED:
                verdict = walk.blocked.verdict if walk.blocked else Verdict.UNREACHABLE
                raise blocked(self._finish(walk, "blocked", results), verdict) from self._restore_attempt.error

    def _finish(self, walk: WalkBack[ScanResult], outcome: Outcome, results: Sequence[ScanResult] = ()) -> ResumeReport:
        self.report = self._reporter.report(
            walk,
            outcome,
            place=self.place.uri,
            attempt=self.attempt,
            identity=self.identity,
            rules=self.rules,
            untried=results,
            settled=self._scanner.skipped,
            more_requests=int(self._lease is not None and not self._is_looking_only),
        )
        self._write_report()
        return self.report

    def _write_settled(self) -> None:
        """Record for the next attempt which places it need not list."""
        settled = self._scanner.settled_attempts(self._restore_attempt.references)
        if self._is_looking_only or self._lease is None or not settled.places or settled == self._written_settled:
            return
        self._written_settled = settled
        with suppress(Exception):  # best effort, as the report
            self.place.put(SETTLED, settled.encode())

    def note(self, text: str) -> None:
        """Add a note to the report after the decision."""
        with self._lock:
            self._reporter.notes.append(text)
            if self.report is not None:
                notes, warnings = tuple(self._reporter.notes), tuple(self._reporter.warnings)
                self.report = replace(self.report, notes=notes, warnings=warnings)
                self._write_report()

    def _write_report(self) -> None:
        if self._is_looking_only or self._lease is None or self.report is None:
            return
        with suppress(Exception):  # best effort: the decision stands without it
            self.place.put(RECORD, self.report.as_json().encode())


def _is_local(error: ResumeError) -> bool:
    return isinstance(error, ResumeBlocked) and error.verdict == Verdict.LOCAL
