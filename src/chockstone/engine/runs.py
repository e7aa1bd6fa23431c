"""Runs: the ones that are loaded, each with its lane."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chockstone.engine.futures import Futures, Result
from chockstone.engine.lanes import Lane, LaneFull, Operation
from chockstone.engine.limits import Busy, Limits
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)
Release = Callable[[], None]
Act = Callable[[Release], Awaitable[Result]]


@dataclass(slots=True, eq=False)
class LiveRun:
    """A run that the worker holds, or will hold once its first operation has run."""

    run_id: str
    session_id: str
    owner: str
    base_model: str
    spec: Mapping[str, Any]  # Any: plain JSON
    optimizer: Mapping[str, Any]
    lane: Lane
    opening_id: str = ""  # request id of the operation that opens it
    problem: str | None = None  # why it cannot go on
    is_closing: bool = False  # takes no more operations
    steps: int = 0  # of its optimizer, as the worker told them last
    last_save_bytes: int = 0


class Runs:
    def __init__(self, futures: Futures, limits: Limits) -> None:
        self._futures = futures
        self._limits = limits
        self._live: dict[str, LiveRun] = {}
        self._queued_bytes = 0

    def __iter__(self) -> Iterator[LiveRun]:
        return iter(list(self._live.values()))

    def get(self, run_id: str) -> LiveRun | None:
        return self._live.get(run_id)

    def add(self, live: LiveRun) -> None:
        """Raises Busy when as many runs are loaded as may be."""
        if len(self._live) >= self._limits.runs:
            raise Busy(
                f"{len(self._live)} runs are loaded, and no more may be: finish a session or unload a model, "
                "or start the server with a higher max_runs"
            )
        self._live[live.run_id] = live

    def remove(self, live: LiveRun) -> None:
        """Leaves a run alone that was made anew under the same id."""
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]

    def fail_all(self, problem: str) -> None:
        """What the worker held is gone; queued operations will say so."""
        for live in self._live.values():
            live.problem = problem

    def submit(self, live: LiveRun, seq_id: int | None, act: Act, *, size_bytes: int = 0, is_last: bool = False) -> str:
        """Queue ``act`` in the run's lane and return its request id; the same ``seq_id`` gets the same id.

        Raises Busy when too much is queued, unless it is the run's last operation.
        """
        if (known := live.lane.find(seq_id)) is not None:
            return known
        if self._queued_bytes + size_bytes > self._limits.queued_bytes:
            raise Busy("the server holds as many request bytes as it may; try again in a moment")
        promise = self._futures.promise(live.owner)

        async def work(release: Release) -> None:
            try:
                result = await self._perform(live, act, release)
            finally:
                self._queued_bytes -= size_bytes
            self._futures.settle(promise, result)

        try:
            live.lane.add(Operation(promise.request_id, seq_id, work), is_last=is_last)
        except LaneFull:
            self._futures.withdraw(promise)
            raise Busy(
                f"run {live.run_id!r} has {live.lane.waiting} operations waiting; wait for some to end"
            ) from None
        self._queued_bytes += size_bytes
        return promise.request_id

    async def _perform(self, live: LiveRun, act: Act, release: Release) -> Result:
        try:
            if live.problem is not None:
                raise ServerFailure(live.problem)
            return await act(release)
        except RequestError as error:
            return Result.failed(error)
        except Exception as error:  # told to the client, and logged
            log.exception("operation failed run=%s", live.run_id)
            return Result.failed(error)
