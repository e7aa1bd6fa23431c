"""Turns: which request gets the next place and its share of the cache.

A place goes to the owner who has the fewest. Every place decodes one token per step, so owners who want more than there
is get the same number of tokens. Within an owner, the samples of a request take turns as if they had arrived one after
another: a request for hundreds of samples does not block later requests, nor do they block it.

A quarter of the places and of the cache is a reserve for owners who have nothing running: their first sample does not
wait for samples of others to end. Cache is reserved at its maximum, and an admitted request keeps one place until it is
done, so what has started can always continue.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from chockstone.sampling.job import Job

_RESERVE: Final = 4  # the reserve is an additional 1 / _RESERVE of places and cache


@dataclass(slots=True)
class _Pool:
    """Free places and free bytes of cache."""

    places: int
    cache_bytes: int


@dataclass(slots=True, eq=False)
class _Line:
    """The requests of one owner that do not have all their places yet."""

    waiting: deque[Job] = field(default_factory=deque)  # jobs that have nothing yet
    questions: deque[Job] = field(default_factory=deque)  # the same, but they never decode and so need no place
    partial: list[Job] = field(default_factory=list)  # prompt read, some samples without a place

    def next(self) -> Job | None:
        """The job that gets a place, if this owner gets one."""
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
        self._prefixes: dict[Job, _Pool] = {}  # the pool that a job's prefix was taken from
        self._reserved: set[Job] = set()  # jobs with one row from the reserve
        self._lines: dict[str, _Line] = {}  # by owner; the owner who was granted something last is at the end
        self._places: Counter[str] = Counter()  # number of places, by owner
        self._running: Counter[str] = Counter()  # number of admitted requests that are not done, by owner
        self._kept: list[Job] = []  # jobs whose next sample takes the place of the one that ended

    def add(self, job: Job) -> None:
        line = self._lines.setdefault(job.owner, _Line())
        (line.waiting if job.decodes else line.questions).append(job)

    def add_samples(self, job: Job) -> None:
        """The prompt is read: from now on further samples of the job may be granted."""
        if job.granted < len(job.sequences):
            self._lines.setdefault(job.owner, _Line()).partial.append(job)

    def admit(self) -> tuple[list[Job], list[Job]]:
        """Returns jobs whose prompts may be read now, and jobs that were granted more samples to start."""
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
        """Admit one job of each owner in turn, as long as the prefix of the next one fits."""
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
        """The next job of the owner with the fewest places; of several, the one who was granted nothing for longest."""
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
        """A sample of the job has ended."""
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
        """Remove the job in whatever state it is, and free what it holds."""
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
