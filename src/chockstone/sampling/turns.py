"""Turns: who gets one of the places, and its share of the cache, next.

A request's samples take their turns as if they had arrived one after another behind it, so that a request for
hundreds does not shut out those that come after, nor they it. What is granted was reserved at its largest, and a
request once admitted keeps one place until it is done: whatever began can always go on.
"""

from __future__ import annotations

from collections import deque

from chockstone.sampling.job import Job


class Turns:
    def __init__(self, *, places: int, cache_bytes: int) -> None:
        self._places = places
        self._free_bytes = cache_bytes
        self._waiting: deque[Job] = deque()  # have nothing yet
        self._questions: deque[Job] = deque()  # the same, but will never decode and so need no place
        self._partial: list[Job] = []  # prompt read, some samples without a place
        self._kept: list[Job] = []  # whose next sample has the place of the one that ended

    def add(self, job: Job) -> None:
        (self._waiting if job.decodes else self._questions).append(job)

    def add_samples(self, job: Job) -> None:
        """The prompt is read: from now on its further samples may be granted."""
        if job.granted < len(job.sequences):
            self._partial.append(job)

    def admit(self) -> tuple[list[Job], list[Job]]:
        """Jobs whose prompts may be read now, and jobs that have been granted more samples to start."""
        admitted: list[Job] = []
        widened: dict[Job, None] = dict.fromkeys(self._kept)
        self._kept = []
        while self._questions and self._questions[0].prefix_bytes <= self._free_bytes:
            job = self._questions.popleft()
            job.granted = len(job.sequences)
            self._take_prefix(job)
            admitted.append(job)
        while True:
            job_due = self._next()
            if job_due is None or not self._grant(job_due):
                return admitted, list(widened)
            if job_due.granted > 1:
                widened[job_due] = None
            else:
                admitted.append(job_due)

    def _next(self) -> Job | None:
        first = min(self._partial, key=lambda job: job.turn, default=None)
        if self._waiting and (first is None or self._waiting[0].turn <= first.turn):
            return self._waiting[0]
        return first

    def _grant(self, job: Job) -> bool:
        is_new = not job.has_prefix
        needed = job.row_bytes + (job.prefix_bytes if is_new else 0)
        if not self._places or needed > self._free_bytes:
            return False
        self._places -= 1
        self._free_bytes -= job.row_bytes
        if is_new:
            self._waiting.popleft()
            self._take_prefix(job)
        self._widen(job)
        return True

    def _widen(self, job: Job) -> None:
        job.granted += 1
        if job.granted == len(job.sequences) and job in self._partial:
            self._partial.remove(job)

    def _take_prefix(self, job: Job) -> None:
        job.has_prefix = True
        self._free_bytes -= job.prefix_bytes

    def return_prefix(self, job: Job) -> None:
        if job.has_prefix:
            job.has_prefix = False
            self._free_bytes += job.prefix_bytes

    def end_sample(self, job: Job) -> None:
        """One of its samples has ended."""
        job.ended += 1
        if job in self._partial and job.ended == job.granted:
            self._widen(job)
            self._kept.append(job)
        else:
            self._release(job)

    def _release(self, job: Job) -> None:
        if job.decodes:
            self._places += 1
            self._free_bytes += job.row_bytes

    def remove(self, job: Job) -> None:
        """It ends here, wherever it was; what it still held is free again."""
        for line in (self._waiting, self._questions, self._partial, self._kept):
            if job in line:
                line.remove(job)
        self.return_prefix(job)
        for _ in range(job.granted - job.ended):
            self._release(job)
