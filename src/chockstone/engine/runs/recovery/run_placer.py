"""The run placer: chooses the replica of a run that is to be recovered, and waits until it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from chockstone.backends.protocol import Worker, WorkerLost, Workers
from chockstone.engine.replicas.placement import PlacedRun, choose_replica
from chockstone.engine.replicas.replica_set import replica_facts
from chockstone.engine.runs.run import LiveRuns, Run

_LOOK_SECONDS: Final = 0.25  # a run whose replica died may be placed elsewhere meanwhile


class RunPlacer:
    def __init__(self, workers: Workers, runs: LiveRuns) -> None:
        self._workers = workers
        self._runs = runs

    def is_ready_for(self, run: Run) -> bool:
        """Whether ``place`` need not wait."""
        return any(worker.is_ready for worker in self._candidates(run))

    async def place(self, run: Run) -> Worker:
        """The worker of the run, once it is ready: of the least loaded replica, unless the run has its place.

        Raises WorkerLost if none will be started any more.
        """
        while not self.is_ready_for(run):
            await _any_ready(self._candidates(run))
        if not run.is_placed:
            chosen = choose_replica(replica_facts(self._workers), self._placed())
            assert chosen is not None, "a replica is ready"
            run.place(chosen)
        return self._workers.replicas[run.replica]

    def note_lost(self, run: Run) -> None:
        """Its replica died. Another one recovers the run, unless the run is a suspect of two deaths: then it waits for
        its replica to be started again, and takes no third one down."""
        if not run.is_suspect:
            run.unplace()

    def _candidates(self, run: Run) -> Sequence[Worker]:
        if run.is_placed:
            return [self._workers.replicas[run.replica]]
        return [self._workers.replicas[each.replica] for each in replica_facts(self._workers)]

    def _placed(self) -> list[PlacedRun]:
        return [PlacedRun(run.run_id, run.replica) for run in self._runs if run.is_placed]


async def _any_ready(workers: Sequence[Worker]) -> None:
    """Wait a moment for one of them. Raises WorkerLost if none will be started any more."""
    waiting = [asyncio.create_task(worker.ready()) for worker in workers]
    try:
        done, _ = await asyncio.wait(waiting, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        failed = [error for task in done if (error := task.exception()) is not None]
        if len(failed) < len(waiting):
            if failed:
                await asyncio.sleep(_LOOK_SECONDS)  # others may still become ready
            return
        raise WorkerLost(str(failed[0])) from failed[0]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
