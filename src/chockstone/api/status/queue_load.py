"""The load of the queues: operations and samples without a result, counted alike for ``/server`` and ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass

from chockstone.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class QueueLoad:
    operations: int  # of runs, waiting or running
    samples: int  # likewise
    oldest_wait_seconds: float | None  # of the operations; None: there is none


def queue_load(engine: Engine, owner: str | None, *, now: float) -> QueueLoad:
    """Of all users when ``owner`` is None. ``now``: by the engine's monotonic clock."""
    waiting = [run.under_way for run in engine.runs if owner in (None, run.owner)]
    oldest = min((next(iter(each.values())) for each in waiting if each), default=None)  # a run has them in order
    return QueueLoad(
        operations=sum(map(len, waiting)),
        samples=engine.sampling.count_waiting(owner),
        oldest_wait_seconds=None if oldest is None else max(now - oldest, 0.0),
    )
