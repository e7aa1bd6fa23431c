"""Turns: who gets one of the places, and its share of the cache, next.

A place goes to the owner who has the fewest: as every place decodes one token a step, owners who want more than there
is get the same number of tokens. Within an owner, a request's samples take their turns as if they had arrived one after
another behind it, so that a request for hundreds does not shut out those that come after, nor they it.

Besides, there is a reserve of a quarter of the places and of the cache, for owners who have nothing running: their
first sample does not wait for others' samples to end. What is granted was reserved at its largest, and a request once
admitted keeps one place until it is done: whatever began can always go on.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from chockstone.sampling.job import Job

_RESERVE: Final = 4  # the reserve is one part in so many, on top of the rest


@dataclass(slots=True)
class _Pool:
    """What is free."""

    places: int
    cache_bytes: int


@dataclass(slots=True, eq=False)
class _Line:
    """One owner's requests that have not all they want."""

    waiting: deque[Job] = field(default_factory=deque)  # have nothing yet
    questions: deque[Job] = field(default_factory=deque)  # the same, but will never decode and so need no place
    partial: list[Job] = field(default_factory=list)  # prompt read, some samples without a place

    def next(self) -> Job | None:
        """Who gets a place, if this owner gets one."""
        first = min(self.partial, key=lambda job: job.turn, default=None)
        if self.waiting and (first is None or self.waiting[0].turn <= first.turn):
            return self.waiting[0]
        return first

    def is_empty(self) -> bool:
        return not (self.waiting or self.questions or self.partial)


class SamplingTurns:
    def __init__(self, *, places: int, cache_bytes: int) -> None:
        self._common = _Pool(places, cache_bytes)
        self._reserve = _Pool(max(1, places // _RESERVE), cache_bytes // _RESERVE)
        self._prefixes: dict[Job, _Pool] = {}  # where a job's prefix was taken from
        self._reserved: set[Job] = set()  # of whose rows one is from the reserve
        self._lines: dict[str, _Line] = {}  # by owner; the one who was granted something last is the last
        self._places: Counter[str] = Counter()  # that each owner has
        self._running: Counter[str] = Counter()  # each owner's requests that were admitted and are not done
        self._kept: list[Job] = []  # whose next sample has the place of the one that ended

    def add(self, job: Job) -> None:
        line = self._lines.setdefault(job.owner, _Line())
        (line.waiting if job.decodes else line.questions).append(job)

    def add_samples(self, job: Job) -> None:
        """The prompt is read: from now on its further samples may be granted."""
        if job.granted < len(job.sequences):
            self._lines.setdefault(job.owner, _Line()).partial.append(job)

    def admit(self) -> tuple[list[Job], list[Job]]:
        """Jobs whose prompts may be read now, and jobs that have been granted more samples to start."""
        admitted: list[Job] = []
        widened: dict[Job, None] = dict.fromkeys(self._kept)
        self._kept = []
        self._admit_questions(admitted)
        while (job := self._next()) is not None and self._grant(job, self._common):
            if job.granted > 1:
                widened[job] = None
            else:
                admitted.append(job)
        for owner in list(self._lines):
            line = self._lines.get(owner)
            if line is not None and line.waiting and not self._running[owner]:
                first = line.waiting[0]
                if self._grant(first, self._reserve):
                    self._reserved.add(first)
                    admitted.append(first)
        return admitted, list(widened)

    def _admit_questions(self, admitted: list[Job]) -> None:
        """One of each owner after the other, as long as the next one's prefix fits."""
        asking = [owner for owner, line in self._lines.items() if line.questions]
        while asking:
            still_asking = []
            for owner in asking:
                job = self._lines[owner].questions[0]
                pool = self._common
                if job.prefix_bytes > pool.cache_bytes and not self._running[owner]:
                    pool = self._reserve
                if job.prefix_bytes > pool.cache_bytes:
                    continue
                self._lines[owner].questions.popleft()
                job.granted = len(job.sequences)
                self._begin(job, pool)
                admitted.append(job)
                if self._lines[owner].questions:
                    still_asking.append(owner)
                else:
                    self._drop_if_empty(owner)
            asking = still_asking

    def _next(self) -> Job | None:
        """Of the owner with the fewest places; among equals, of the one who was granted nothing for longest."""
        due = [(self._places[owner], job) for owner, line in self._lines.items() if (job := line.next()) is not None]
        return min(due, key=lambda each: each[0])[1] if due else None

    def _grant(self, job: Job, pool: _Pool) -> bool:
        is_new = not job.has_prefix
        needed = job.row_bytes + (job.prefix_bytes if is_new else 0)
        if not pool.places or needed > pool.cache_bytes:
            return False
        pool.places -= 1
        pool.cache_bytes -= job.row_bytes
        self._places[job.owner] += 1
        line = self._lines[job.owner] = self._lines.pop(job.owner)  # behind the others
        if is_new:
            line.waiting.popleft()
            self._begin(job, pool)
        self._widen(job)
        self._drop_if_empty(job.owner)
        return True

    def _begin(self, job: Job, pool: _Pool) -> None:
        self._running[job.owner] += 1
        job.has_prefix = True
        self._prefixes[job] = pool
        pool.cache_bytes -= job.prefix_bytes

    def _widen(self, job: Job) -> None:
        job.granted += 1
        line = self._lines.get(job.owner)
        if line is not None and job.granted == len(job.sequences) and job in line.partial:
            line.partial.remove(job)
            self._drop_if_empty(job.owner)

    def return_prefix(self, job: Job) -> None:
        if job.has_prefix:
            job.has_prefix = False
            self._prefixes.pop(job).cache_bytes += job.prefix_bytes

    def end_sample(self, job: Job) -> None:
        """One of its samples has ended."""
        job.ended += 1
        line = self._lines.get(job.owner)
        if line is not None and job in line.partial and job.ended == job.granted:
            self._widen(job)
            self._kept.append(job)
        else:
            self._release(job)
        if job.ended == len(job.sequences):
            self._end(job)

    def _release(self, job: Job) -> None:
        if not job.decodes:
            return
        pool = self._reserve if job in self._reserved else self._common
        self._reserved.discard(job)
        pool.places += 1
        pool.cache_bytes += job.row_bytes
        self._places[job.owner] -= 1
        if not self._places[job.owner]:
            del self._places[job.owner]

    def _end(self, job: Job) -> None:
        self._running[job.owner] -= 1
        if not self._running[job.owner]:
            del self._running[job.owner]

    def remove(self, job: Job) -> None:
        """It ends here, wherever it was; what it still held is free again."""
        line = self._lines.get(job.owner, _Line())
        for place in (line.waiting, line.questions, line.partial, self._kept):
            if job in place:
                place.remove(job)
        self._drop_if_empty(job.owner)
        self.return_prefix(job)
        for _ in range(job.granted - job.ended):
            self._release(job)
        if job.granted:
            self._end(job)

    def _drop_if_empty(self, owner: str) -> None:
        if owner in self._lines and self._lines[owner].is_empty():
            del self._lines[owner]
