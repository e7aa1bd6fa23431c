"""Run moves: takes runs from replicas with much load to replicas with little.

A move parks the run in one replica and wakes it in another, in one turn of its lane: operations before it end in the
old replica, those after it begin in the new one, with the same bits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from chockstone.backends.protocol import Workers
from chockstone.engine.journal.journal import JournalError
from chockstone.engine.replicas.placement import Move, PlacedRun, PlacementRules, decide_moves
from chockstone.engine.replicas.replica_set import ReplicaSet, replica_facts
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.run import MOVED, LiveRuns, Run

log = logging.getLogger(__name__)
_INTERVAL_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 0.05
_BUSY_SECONDS: Final = 60.0  # since its last request, a run counts as busy
_BUSY_WEIGHT: Final = 1.0
_IDLE_WEIGHT: Final = 0.1


class RunMoves:
    def __init__(
        self,
        workers: Workers,
        runs: LiveRuns,
        archives: RecoveryArchives,
        *,
        queue_recovery: Callable[[Run], None],
        rules: PlacementRules | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._runs = runs
        self._archives = archives
        self._queue_recovery = queue_recovery
        self._rules = rules or PlacementRules()
        self._monotonic = monotonic
        self._moved_at: dict[str, float] = {}  # by run
        self._moving: set[str] = set()  # runs whose move has not ended

    async def keep(self) -> None:
        """Even the load out now and then, for ever; without replicas there is nothing to do."""
        while isinstance(self._workers, ReplicaSet):
            await asyncio.sleep(_INTERVAL_SECONDS)
            await self.balance()

    async def balance(self) -> None:
        """Make the moves that the present load asks for, one after the other."""
        for run, target in self._decide():
            await self.move(run, target)

    async def evacuate(self, replica: int) -> bool:
        """Move all runs of a replica that leaves, each once its operation in progress has ended.

        Whether all of them moved. A run that cannot move at present stays where it is.
        """
        leaving = [(run, target) for run, target in self._decide() if run.replica == replica]
        return all(await asyncio.gather(*(self.move(run, target) for run, target in leaving)))

    def _decide(self) -> list[tuple[Run, int]]:
        live = {run.run_id: run for run in self._runs}
        self._moved_at = {run_id: at for run_id, at in self._moved_at.items() if run_id in live}
        placed = [self._facts(run) for run in live.values() if run.is_placed]
        moves: list[Move] = decide_moves(replica_facts(self._workers), placed, self._rules)
        return [(live[move.run_id], move.target) for move in moves]

    async def move(self, run: Run, target: int) -> bool:
        """Whether the run is in the other replica, or on its way there; if not, it goes on where it is."""
        if not self._can_begin(run) or run.lane.is_halted:
            return False
        moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def turn(_: Callable[[], None]) -> None:
            try:
                is_moved = await self._unload(run, target)
            except JournalError:  # it is closed already, or cannot be written
                is_moved = False
            if not moved.done():
                moved.set_result(is_moved)

        self._moving.add(run.run_id)
        try:
            run.lane.add(turn)
            self._queue_recovery(run)
            return await moved
        finally:
            self._moving.discard(run.run_id)

    async def _unload(self, run: Run, target: int) -> bool:
        await run.all_saved()
        while run.is_archiving:
            await asyncio.sleep(_WAIT_SECONDS)
        source, worker = run.replica, self._workers.replicas[run.replica]
        if source == target or run.generation != worker.generation or not self._is_movable(run):
            return False  # its worker died meanwhile, for example
        if not await self._archives.unload(run, MOVED):
            return False
        run.place(target)
        self._moved_at[run.run_id] = self._monotonic()
        log.info("run moved run=%s from_replica=%d to_replica=%d", run.run_id, source, target)
        return True

    def _facts(self, run: Run) -> PlacedRun:
        now = self._monotonic()
        moved_at = self._moved_at.get(run.run_id)
        is_busy = bool(run.under_way) or now - run.used_at < _BUSY_SECONDS
        return PlacedRun(
            run.run_id,
            run.replica,
            _BUSY_WEIGHT if is_busy else _IDLE_WEIGHT,
            None if moved_at is None else now - moved_at,
            self._can_begin(run),
        )

    def _can_begin(self, run: Run) -> bool:
        return run.run_id not in self._moving and self._is_movable(run)

    @staticmethod
    def _is_movable(run: Run) -> bool:
        """A suspect of a worker's death stays where it is, and takes no other replica down."""
        if run.is_stuck or run.is_closing or run.is_suspect:
            return False
        return run.generation > 0 and run.journal.is_kept
