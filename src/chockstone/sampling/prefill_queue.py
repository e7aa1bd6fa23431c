"""The prefill queue: whose prompts are computed next.

Each owner has a FIFO queue of prompts. A prefill step takes chunks of the owners' first prompts, then of their
second ones, and so on; an owner whose chunk was taken goes behind the others. So an owner waits for at most one step
of each other owner, however many prompts those have.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from chockstone.sampling.job import Job


class PrefillQueue:
    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Job]] = OrderedDict()  # no queue is empty

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, job: Job) -> None:
        self._queues.setdefault(job.owner, deque()).append(job)

    def in_turn(self) -> Iterator[Job]:
        """All jobs, the next one first. Nothing may be added or removed meanwhile."""
        queues, position = list(self._queues.values()), 0
        while queues:
            yield from (queue[position] for queue in queues)
            position += 1
            queues = [queue for queue in queues if len(queue) > position]

    def take(self, jobs: Iterable[Job]) -> None:
        """Remove jobs whose chunks are computed now; their owners go behind the others."""
        for job in jobs:
            self.remove(job)
            if job.owner in self._queues:
                self._queues.move_to_end(job.owner)

    def remove(self, job: Job) -> None:
        """Remove a job; an unknown one is ignored."""
        queue = self._queues.get(job.owner)
        if queue is None or job not in queue:
            return
        queue.remove(job)
        if not queue:
            del self._queues[job.owner]
