"""Reading order: which prompts are read next.

Each owner has a queue of prompts. A step reads pieces of the first prompt of each owner, then of the second ones, and
so on. An owner who got a piece goes behind those who got none. So an owner waits for at most one step of each other
owner, however many prompts those have.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from chockstone.sampling.job import Job


class ReadingOrder:
    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Job]] = OrderedDict()  # none is empty

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, job: Job) -> None:
        self._lines.setdefault(job.owner, deque()).append(job)

    def in_turn(self) -> Iterator[Job]:
        """All jobs in order. Nothing may be added or removed during the iteration."""
        lines, place = list(self._lines.values()), 0
        while lines:
            yield from (line[place] for line in lines)
            place += 1
            lines = [line for line in lines if len(line) > place]

    def take(self, jobs: Iterable[Job]) -> None:
        """Remove the jobs that get a piece now from their queues; their owners go behind the others."""
        for job in jobs:
            self.remove(job)
            if job.owner in self._lines:
                self._lines.move_to_end(job.owner)

    def remove(self, job: Job) -> None:
        """Remove a job, if it is there."""
        line = self._lines.get(job.owner)
        if line is None or job not in line:
            return
        line.remove(job)
        if not line:
            del self._lines[job.owner]
