"""Walking back: chooses one of several candidates, newest first, without touching storage.

The caller tries each candidate and reports the result; the walk says which candidate is next. It is an
ordinary iterator, so that the body of the loop may also await:

    walk = WalkBack(candidates)
    for candidate in walk:
        try:
            state = load(candidate)            # or: await load(candidate)
        except Exception as error:
            walk.failed(error)                 # judged as in ``verdicts``; or walk.reject(Verdict.SUPERSEDED, "…")
        else:
            walk.accept(step=state.step)
    match walk.ending: ...

The rules: a CORRUPT candidate is tried a second time before it is skipped, because the fault may have been in the
transfer. DENIED, UNREACHABLE, INCOMPATIBLE and LOCAL end the walk: the candidate may be good, and no older one may
replace it. ``on_unreadable="older"`` skips it, except for LOCAL, and then accepts only a VERIFIED candidate. A run may
start from zero only if nothing was ever committed.

If the body reports nothing, or leaves the loop, its candidate counts as UNREACHABLE and nothing was accepted.
Candidates of which no good is expected (those that are SUPERSEDED) are put last by the caller, who may take
them with ``accept(verdict=Verdict.SUPERSEDED)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Literal, TypeVar

from chockstone.checkpoints.restoring.verdicts import Verdict, judge

C = TypeVar("C")
OnUnreadable = Literal["stop", "older"]
_NOT_REPORTED: Final = "the caller reported no result for this candidate"


class Ending(StrEnum):
    TAKEN = "taken"
    BLOCKED = "blocked"  # by what cannot be judged now
    EXHAUSTED = "exhausted"  # something was committed, and none of it can be used
    FRESH = "fresh"  # nothing was ever committed


@dataclass(frozen=True, slots=True)
class CandidateVerdict(Generic[C]):
    """The verdict on one candidate, after the second reading if there were two."""

    candidate: C
    verdict: Verdict
    reason: str = ""
    step: int | None = None  # as far as it is known
    readings: int = 1


class WalkBack(Generic[C]):
    def __init__(self, candidates: Iterable[C] = (), *, on_unreadable: OnUnreadable = "stop") -> None:
        self._left = deque(candidates)
        self._on_unreadable = on_unreadable
        self._present: C | None = None
        self._is_open = False  # whether a candidate was handed out and not reported yet
        self._readings = 0
        self._will_retry = False
        self.judged: list[CandidateVerdict[C]] = []  # each candidate once, in their order
        self.choice: CandidateVerdict[C] | None = None
        self.blocked: CandidateVerdict[C] | None = None  # what ended the walk, or the first that "older" went past

    def add(self, candidates: Iterable[C]) -> None:
        """Add older candidates than all so far, for callers that list in pages. An ended loop may be resumed."""
        self._left.extend(candidates)

    def __iter__(self) -> Iterator[C]:
        while True:
            if self._is_open:
                self.reject(Verdict.UNREACHABLE, _NOT_REPORTED)
            if self._will_retry and self._present is not None:
                self._will_retry = False
            elif self._left and not self.is_over:
                self._present, self._readings = self._left.popleft(), 0
            else:
                return
            self._readings += 1
            self._is_open = True
            yield self._present

    def accept(self, *, step: int | None = None, verdict: Verdict = Verdict.VERIFIED, reason: str = "") -> None:
        """The candidate was restored; the walk is over."""
        self.choice = self._record(verdict, reason, step)

    def failed(self, error: BaseException, *, step: int | None = None) -> Verdict:
        verdict = judge(error)
        self.reject(verdict, str(error) or type(error).__name__, step=step)
        return verdict

    def reject(self, verdict: Verdict, reason: str, *, step: int | None = None, is_sure: bool = False) -> None:
        """The candidate cannot be used. ``is_sure``: a second reading was made already, or would find the same."""
        if verdict is Verdict.CORRUPT and self._readings == 1 and not is_sure:
            self._is_open, self._will_retry = False, True
            return
        look = self._record(verdict, reason, step)
        if verdict.stops:
            self.blocked = self.blocked or look

    def may_take(self, verdict: Verdict) -> bool:
        """Whether a candidate of this verdict may be accepted at this point of the walk. Ask before loading it."""
        return verdict is Verdict.VERIFIED or (
            self.blocked is None and verdict in (Verdict.UNVERIFIED, Verdict.SUPERSEDED)
        )

    @property
    def will_retry(self) -> bool:
        """Whether the same candidate comes a second time."""
        return self._will_retry

    @property
    def is_over(self) -> bool:
        """Whether the walk hands out no further candidate."""
        return self.choice is not None or self._is_stopped

    @property
    def skipped(self) -> list[CandidateVerdict[C]]:
        """All candidates that were judged and not accepted."""
        return [look for look in self.judged if look is not self.choice]

    @property
    def ending(self) -> Ending:
        """How the walk ended. Ask after the loop."""
        if self.choice is not None:
            return Ending.TAKEN
        if self.blocked is not None or self._is_open or self._will_retry or self._left:
            return Ending.BLOCKED
        return Ending.EXHAUSTED if any(look.verdict.was_committed for look in self.judged) else Ending.FRESH

    @property
    def steps_lost(self) -> int | None:
        """Steps between the choice and the newest committed candidate; None where either step is not known."""
        if self.choice is None:
            return None
        newest = next(look for look in self.judged if look is self.choice or _counts(look))
        if newest is self.choice:
            return 0
        return None if newest.step is None or self.choice.step is None else max(0, newest.step - self.choice.step)

    @property
    def _is_stopped(self) -> bool:
        if self.blocked is None:
            return False
        return self._on_unreadable != "older" or self.judged[-1].verdict is Verdict.LOCAL

    def _record(self, verdict: Verdict, reason: str, step: int | None) -> CandidateVerdict[C]:
        if not self._is_open or self._present is None:
            raise RuntimeError("nothing is being looked at")
        self._is_open = False
        look = CandidateVerdict(self._present, verdict, reason, step, self._readings)
        self.judged.append(look)
        return look


def _counts(look: CandidateVerdict[C]) -> bool:
    """Whether it may have been a good save: one that stops the walk may be good."""
    return look.verdict.stops or (look.verdict.was_committed and look.verdict is not Verdict.SUPERSEDED)
