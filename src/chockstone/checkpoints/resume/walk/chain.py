"""Chains: all attempts of one task, and which saved state the newest of them goes on from.

A chain claims its own place, looks at every place that may hold something, and walks back from the
newest. It moves no payload itself: ``walk`` hands each candidate to a loader, and what the loader
raises is judged. After a refusal nothing may be saved until someone says that the chain is to begin
anew, or the next save would bury what could not be read.
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
from chockstone.checkpoints.resume.attempts.claims import SETTLED, Claim, Generation, GenerationReference, Kind, Settled
from chockstone.checkpoints.resume.attempts.cost import Spent
from chockstone.checkpoints.resume.attempts.generations import CHAIN, FoundGeneration, read_head_of
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, AttemptPlaces, BucketPlace, normalise
from chockstone.checkpoints.resume.attempts.write_lease import FencedStore, WriteLease, new_claim
from chockstone.checkpoints.resume.walk.candidate_scanner import CandidateScanner, Item, generations_of
from chockstone.checkpoints.resume.walk.probing import Deadline
from chockstone.checkpoints.resume.walk.report import RECORD, Outcome, ResumeReport
from chockstone.checkpoints.resume.walk.reporter import ResumeReporter, blocked, broken_off, exhausted, unfit
from chockstone.checkpoints.resume.walk.restore_attempt import RestoreAttempt
from chockstone.checkpoints.resume.walk.rules import ResumeRules

log = logging.getLogger(__name__)
T = TypeVar("T")


class Chain:
    """One attempt's view of its chain. Thread-safe; does no I/O before the first call that needs it."""

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
        meanwhile: Callable[[], Sequence[Candidate]] = lambda: (),
        is_looking_only: bool = False,
        since: Spent | None = None,
    ) -> None:
        """``is_looking_only``: claims and fences nothing; for those who only want to know.

        ``meanwhile`` is asked once the place is claimed, for attempts that have begun since ``candidates`` were
        listed; it raises Superseded for one that is later than this. So of two that start at once one sees the other.

        ``since``: what ``places`` had cost before anything was asked for this chain; None: until now.
        """
        self._places = places
        self.place = places.open(own)
        self.identity = dict(identity)
        self.attempt = attempt
        self.rules = rules
        self.report: ResumeReport | None = None
        self.on_commit: Callable[[], object] = lambda: None  # after each save that counts
        self._heads: dict[tuple[str, str], Head] = {}
        self.held: set[tuple[str, str]] = set()  # places and generations that something under way will refer to
        self._meanwhile = meanwhile
        self._is_looking_only = is_looking_only
        self._lock = threading.RLock()
        self._tenure: WriteLease | None = None
        self._unclaimed: Exception | None = None  # why it was decided without holding the place
        self._next = 0
        self._block: ResumeError | None = None
        self._is_fresh = False
        self._is_undecided = False  # a restore is under way, or was broken off
        self._told_settled: Settled | None = None
        self._items: list[Item] = []  # in the order of the walk, from the choice on once there is one
        self._auditor = ResumeReporter(notes, places.cost, since)
        self._lookout = CandidateScanner(
            places,
            self.identity,
            [Candidate(self.place.uri, Origin.OWN, attempt), *candidates],
            rules.stock,
            new_fence=None if is_looking_only else lambda: self._entry("fence"),
            warn=self._auditor.warn,
        )
        self._trial = RestoreAttempt(
            places, self.identity, rules, warn=self._auditor.warn, is_looking_only=is_looking_only
        )

    def claim(self) -> WriteLease:
        """Hold the place, from the first call on. Raises Superseded where a later attempt has it, or StoreError."""
        with self._lock:
            if self._unclaimed is not None:
                raise self._unclaimed
            if self._tenure is None:
                attempt = self._lookout.looked.get(self.place.uri) or Attempt.look(self.place, self.rules.stock)
                had_stock = bool(attempt.stock) and not attempt.log.claims
                tenure = WriteLease.claim(attempt, self._entry("claim", had_stock=had_stock))
                self._lookout.looked[self.place.uri] = tenure.attempt
                self._lookout.add(self._meanwhile())
                newest = max((each.number for each in tenure.attempt.generations), default=0)
                self._tenure, self._next = tenure, newest + 1
            return self._tenure

    def _entry(self, kind: Kind, *, had_stock: bool = False) -> Claim:
        others = [each for each in self._lookout.candidates if kind == "claim" and each.origin is not Origin.OWN]
        return new_claim(
            kind,
            by=self.place.uri,
            attempt=self.attempt,
            identity=self.identity,
            given=tuple(normalise(each.uri) for each in others),
            foreign=tuple(normalise(each.uri) for each in others if each.may_be_foreign),
            had_stock=had_stock,
        )

    @property
    def store(self) -> FencedStore:
        """For generations of this attempt; commits only while the place is ours."""
        return FencedStore(self.place.store, self.claim(), self._committed)

    @property
    def quiet_store(self) -> FencedStore:
        """As ``store``, for what does not count as a save: nothing is tidied after its commit."""
        return FencedStore(self.place.store, self.claim())

    def _committed(self) -> None:
        self.on_commit()

    def begin(self) -> Generation:
        """A number for the next generation. Raises what blocks the chain."""
        with self._lock:
            if self._block is not None:
                raise self._block
            if self._is_undecided:
                raise broken_off()
            tenure = self.claim()
            if tenure.is_lost:
                tenure.check()  # before anything is written in vain
            self._next += 1
            return Generation(self._next - 1, tenure.number)

    @property
    def metadata(self) -> dict[str, object]:
        """What every archive of the chain says of it."""
        return {CHAIN: {"identity": self.identity, "attempt": self.attempt}}

    @property
    def found(self) -> FoundGeneration | None:
        """What was chosen."""
        return self._trial.found

    def head(self, place: AttemptPlace, name: str) -> Head:
        """Of a committed archive, which never changes: each is read once. Raises what reading it raises."""
        key = place.uri, name
        if key not in self._heads:
            found = self._trial.found
            is_found = found is not None and found.generation is not None and (found.place.uri, found.name) == key
            self._heads[key] = found.head if found and is_found and found.head else read_head_of(place, name)
        return self._heads[key]

    def earlier(self) -> list[Attempt]:
        """Earlier attempts of this chain that were looked at, newest first; those of others are not ours to tidy.

        None after a start at zero: what it does not go on from must not go because of it.
        """
        with self._lock:
            if self._is_fresh:
                return []
            return [each for each in self._lookout.earlier() if each.place.uri != self.place.uri]

    def references_aside(self) -> list[GenerationReference]:
        """References in earlier attempts that were not asked, because nothing else is there."""
        with self._lock:
            return [] if self._is_fresh else self._lookout.references_aside()

    def remove_aside(self, references: Sequence[GenerationReference]) -> None:
        """Remove such references, and tell the next attempt. Raises StoreError at the first that cannot be removed."""
        gone: list[GenerationReference] = []
        try:
            for each in references:
                self._places.open(each.place).remove(each.generation)
                gone.append(each)
        finally:
            with self._lock:
                self._lookout.forget_references(gone)
                self._write_settled()

    def to_sweep(self) -> list[AttemptPlace]:
        """Places of this chain where killed writers may have left something: all of them, or a few in a bucket.

        There each costs a request, so that an attempt takes one of them, any one.
        """
        with self._lock:
            others = [] if self._is_fresh else self._lookout.claimed_places()
            is_restarted = self._tenure is None or self._tenure.number > 1
        if isinstance(self.place, BucketPlace) and others:
            others = [secrets.choice(others)]
        return [self.place, *others] if is_restarted else others

    def acknowledge_fresh_start(self) -> None:
        """Begin at zero although something could not be read: what is saved from now on comes before it."""
        with self._lock:
            self._block = self._unclaimed = None
            self._is_fresh, self._is_undecided = True, False
            log.warning("resume fresh start acknowledged place=%s", self.place.uri)

    def resolve(self) -> ResumeReport:
        """Decide, reading metadata only. Raises ResumeBlocked or ResumeExhausted; a fresh start is a report."""
        self.walk(lambda found: found, outcome="resolved")
        assert self.report is not None
        return self.report

    def explain(self) -> ResumeReport:
        """As ``resolve``, with a refusal as the report's outcome."""
        with suppress(ResumeBlocked, ResumeExhausted):
            self.resolve()
        assert self.report is not None
        return self.report

    def walk(self, load: Callable[[FoundGeneration], T], *, outcome: Outcome = "restored") -> T | None:
        """What ``load`` returned for the newest candidate it accepts, or None: nothing was ever committed.

        Once decided it stays so: called again, ``load`` gets the same candidate, or the same error is raised. Only
        what our own disk refused is tried again; until that succeeds nothing can be saved.
        """
        with self._lock:
            if self._block is not None and not _is_local(self._block):
                raise self._block
            if self._is_fresh or self.rules.fresh_start:
                self._is_fresh = True
                if self.report is None:
                    self._finish(WalkBack[Item](), "fresh")
                return None
            if self._block is not None:
                self._items, self._unclaimed = [], None  # what failed at our own disk is looked at anew
            if outcome == "restored":
                self._is_undecided = True  # Ctrl-C may end it: a save then would bury what it was looking for
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
        self._auditor.begin()
        deadline = Deadline(self.rules.deadline_seconds)
        items = list(self._items or self._first_items(deadline))
        walk = WalkBack(items, on_unreadable=self.rules.on_unreadable)
        last_resorts = [item for item in items if item.is_void]
        loaded: T | None = None
        while True:
            for item in walk:
                before = len(walk.judged)
                loaded = self._trial.run(item, walk, load, deadline)
                if len(walk.judged) > before:
                    self._auditor.record(item, walk, self._trial.trouble)
            if walk.is_over:
                break
            if more := self._lookout.lineage(deadline):
                items += more
                last_resorts += [item for item in more if item.is_void]
                walk.add(more)
            elif settled := self._lookout.set_aside(deadline):
                items += settled
                last_resorts += [item for item in settled if item.is_void]
                walk.add(settled)
            elif last_resorts:
                walk.add(replace(item, is_void=False, is_last_resort=True) for item in last_resorts)
                last_resorts = []
            elif gone := self._lookout.vanished(items, walk, deadline):
                walk.add(gone)
            else:
                break
        choice = walk.choice.candidate if walk.choice is not None and outcome == "restored" else None
        self._items = items[items.index(choice) :] if choice in items else items
        if walk.ending is not Ending.BLOCKED and self._tenure is not None:
            with suppress(StoreError):  # whoever has taken over may have tidied away what should have been found
                self._tenure.check()
        self._conclude(walk, outcome, items)
        return loaded

    def _first_items(self, deadline: Deadline) -> list[Item]:
        """Of our own place, and then of the others that are known once it is claimed."""
        if self._is_looking_only:
            return self._lookout.items(self._lookout.candidates, deadline)
        look = self._own()
        if isinstance(look, Attempt):
            self._lookout.read_settled([look])  # of an earlier process of this attempt
        own, *others = self._lookout.candidates
        items = generations_of(own, look) if isinstance(look, Attempt) else [Item(own, None, error=look)]
        return items + self._lookout.items(others, deadline)

    def _own(self) -> Attempt | Exception:
        """Our own place, claimed. Where we may read and not write, a restore may still succeed, with a warning.

        Then nothing is saved there, whatever we may later: somebody else may have gone on from it meanwhile.
        """
        looked = self._lookout.looked
        try:
            attempt = looked[self.place.uri] = looked.get(self.place.uri) or Attempt.look(self.place, self.rules.stock)
        except Exception as error:  # noqa: BLE001  # judged where the walk comes to it
            return error
        try:
            return self.claim().attempt
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001  # as above
            self._unclaimed = error
            if not isinstance(error, StoreDenied):
                return error
            self._auditor.warn(f"{self.place.uri} could not be claimed, so nothing can be saved there: {error}")
            return attempt

    def _conclude(self, walk: WalkBack[Item], outcome: Outcome, items: Sequence[Item]) -> None:
        """Report how the walk ended, and raise where it ended badly."""
        match walk.ending:
            case Ending.TAKEN:
                self._write_settled()  # before the report, which counts it
                self._finish(walk, outcome, items)
            case Ending.FRESH:
                self._is_fresh = True
                self._finish(walk, "fresh", items)
            case Ending.EXHAUSTED:
                raise exhausted(self._finish(walk, "exhausted", items))
            case Ending.BLOCKED:
                verdict = walk.blocked.verdict if walk.blocked else Verdict.UNREACHABLE
                raise blocked(self._finish(walk, "blocked", items), verdict) from self._trial.trouble

    def _finish(self, walk: WalkBack[Item], outcome: Outcome, items: Sequence[Item] = ()) -> ResumeReport:
        self.report = self._auditor.report(
            walk,
            outcome,
            place=self.place.uri,
            attempt=self.attempt,
            identity=self.identity,
            rules=self.rules,
            untried=items,
            settled=self._lookout.aside,
            more_requests=int(self._tenure is not None and not self._is_looking_only),
        )
        self._write_report()
        return self.report

    def _write_settled(self) -> None:
        """Tell the next attempt which places it need not ask."""
        settled = self._lookout.settled_now(self._trial.references)
        if self._is_looking_only or self._tenure is None or not settled.places or settled == self._told_settled:
            return
        self._told_settled = settled
        with suppress(Exception):  # best effort, as the report
            self.place.put(SETTLED, settled.encode())

    def note(self, text: str) -> None:
        """Add to the audit what became of something after the decision."""
        with self._lock:
            self._auditor.notes.append(text)
            if self.report is not None:
                notes, warnings = tuple(self._auditor.notes), tuple(self._auditor.warnings)
                self.report = replace(self.report, notes=notes, warnings=warnings)
                self._write_report()

    def _write_report(self) -> None:
        if self._is_looking_only or self._tenure is None or self.report is None:
            return
        with suppress(Exception):  # best effort: the decision stands without it
            self.place.put(RECORD, self.report.as_json().encode())


def _is_local(error: ResumeError) -> bool:
    return isinstance(error, ResumeBlocked) and error.verdict == Verdict.LOCAL
