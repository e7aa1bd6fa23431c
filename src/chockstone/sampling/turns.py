"""Turns: which sample gets the next place in the batch, and memory of the KV cache for it.

A place goes to the owner who has the fewest. Every place decodes one token a step, so owners who compete for places
get the same number of tokens. Within an owner, the samples of a request take their turns as if they had arrived one
after another behind it: a request for hundreds of samples does not shut out later requests, nor they it.

A reserve of a quarter of the places and of the cache, on top of the common ones, is for owners who have nothing
running: their first sample does not wait for samples of others. A grant reserves the maximum that the sample can need,
and an admitted request keeps one place until it is done. So an admitted request can always continue.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from chockstone.sampling.job import Job

_RESERVE: Final = 4  # the reserve is this fraction of the common places and cache, in addition to them


@dataclass(slots=True)
class _Pool:
    """Places and cache bytes that are free."""

    places: int
    cache_bytes: int


@dataclass(slots=True, eq=False)
class _Line:
    """The requests of one owner that wait for a place or have samples that do."""

    waiting: deque[Job] = field(default_factory=deque)  # not admitted yet
    scoring: deque[Job] = field(
        default_factory=deque
    )  # not admitted yet, and need no place: they only score their prompt
    partial: list[Job] = field(default_factory=list)  # prefill done, some samples without a place

    def next(self) -> Job | None:
        """The request that gets the next place of this owner."""
        first = min(self.partial, key=lambda job: job.turn, default=None)
        if self.waiting and (first is None or self.waiting[0].turn <= first.turn):
            return self.waiting[0]
        return first

    def is_empty(self) -> bool:
        return not (self.waiting or self.scoring or self.partial)


class SamplingTurns:
    def __init__(self, *, places: int, cache_bytes: int) -> None:
        self.cache_limit_bytes = cache_bytes + cache_bytes // _RESERVE
        self._common = _Pool(places, cache_bytes)
        self._reserve = _Pool(max(1, places // _RESERVE), cache_bytes // _RESERVE)
        self._prefixes: dict[Job, _Pool] = {}  # the pool that a job's prefix was taken from
        self._reserved: set[Job] = set()  # jobs that have one row from the reserve
        self._lines: dict[str, _Line] = {}  # by owner, least recently granted first
        self._places: Counter[str] = Counter()  # places that each owner has
        self._running: Counter[str] = Counter()  # admitted and unfinished requests of each owner
        self._kept: list[Job] = []  # jobs whose next sample takes the place of the sample that ended

    @property
    def cache_bytes(self) -> int:
        """Granted at this moment, prefixes included. May be read from any thread."""
        return self.cache_limit_bytes - self._common.cache_bytes - self._reserve.cache_bytes

    def add(self, job: Job) -> None:
        line = self._lines.setdefault(job.owner, _Line())
        (line.waiting if job.decodes else line.scoring).append(job)

    def add_samples(self, job: Job) -> None:
        """The prefill is done: from now on further samples of the job may be granted places."""
        if job.granted < len(job.sequences):
            self._lines.setdefault(job.owner, _Line()).partial.append(job)

    def admit(self) -> tuple[list[Job], list[Job]]:
        """Jobs to prefill now, and jobs that were granted places for further samples."""
        admitted: list[Job] = []
        widened: dict[Job, None] = dict.fromkeys(self._kept)
        self._kept = []
        self._admit_scoring(admitted)
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

    def _admit_scoring(self, admitted: list[Job]) -> None:
        """Scoring jobs, one of each owner in turn, as long as the next prefix fits."""
        asking = [owner for owner, line in self._lines.items() if line.scoring]
        while asking:
            still_asking = []
            for owner in asking:
                job = self._lines[owner].scoring[0]
                pool = self._common
                if job.prefix_bytes > pool.cache_bytes and not self._running[owner]:
                    pool = self._reserve
                if job.prefix_bytes > pool.cache_bytes:
                    continue
                self._lines[owner].scoring.popleft()
                job.granted = len(job.sequences)
                self._begin(job, pool)
                admitted.append(job)
                if self._lines[owner].scoring:
                    still_asking.append(owner)
                else:
                    self._drop_if_empty(owner)
            asking = still_asking

    def _next(self) -> Job | None:
        """The next job of the owner with the fewest places; among equals, of the least recently granted owner."""
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
        """One sample of the job has ended."""
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
        """Remove a job in any state and free all that it holds."""
        line = self._lines.get(job.owner, _Line())
        for place in (line.waiting, line.scoring, line.partial, self._kept):
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
