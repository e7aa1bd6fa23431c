"""Gap checks of one vLLM server: each set of weights is probed once, before the server samples from it.

A measured gap holds until the server is lost: another process may answer then. A probe that failed is repeated later.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from chockstone.wire.sampler_gap import SamplerGap

Measure = Callable[[], Awaitable[SamplerGap]]
_KEPT: Final = 10_000  # sets of weights; those that were not asked for longest are forgotten
_RETRY_SECONDS: Final = 60.0  # after a probe that could not measure the gap
_RECENT_SECONDS: Final = 3600.0


@dataclass(slots=True, eq=False)
class _Check:
    measuring: asyncio.Task[SamplerGap]
    asked_at: float  # when a sample last asked for it
    ended_at: float = math.inf

    @property
    def has_raised(self) -> bool:
        task = self.measuring
        return task.done() and (task.cancelled() or task.exception() is not None)

    @property
    def gap(self) -> SamplerGap | None:
        """None while it is measured, and if that raised."""
        return self.measuring.result() if self.measuring.done() and not self.has_raised else None


class GapChecks:
    """For one event loop. Weights are named by their archive; None is the base model itself, of the name ``model``."""

    def __init__(self, *, limit: float | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``limit``: of the mean gap; None: nothing is measured unless ``measure`` is called."""
        self._limit = limit
        self._monotonic = monotonic
        self._checks: OrderedDict[str, _Check] = OrderedDict()  # by weights, asked for longest ago first
        self._tasks: set[asyncio.Task[SamplerGap]] = set()

    def may_serve(self, model: str, archive: str | None) -> bool:
        """Asked for each sample. False: the gap is above the limit, or its probe failed a moment ago."""
        if self._limit is None or (check := self._find(_name(model, archive))) is None:
            return True
        check.asked_at = self._monotonic()
        return check.gap is None or check.gap.is_within(self._limit)

    async def measure_once(self, model: str, archive: str | None, measure: Measure) -> bool:
        """Measure the gap if it is not known, once for all that ask meanwhile. Returns whether that was necessary.

        Raises what ``measure`` raises; the next call measures again then.
        """
        if self._limit is None:
            return False
        name = _name(model, archive)
        check = self._find(name) or self._begin(name, measure, asked_at=self._monotonic())
        if check.measuring.done():
            return False
        await asyncio.shield(check.measuring)
        return True

    async def measure(self, model: str, archive: str | None, measure: Measure) -> SamplerGap:
        """Measure now, and replace what was known. A measurement in progress is joined."""
        name = _name(model, archive)
        check = self._checks.get(name)
        if check is None or check.measuring.done():
            check = self._begin(name, measure, asked_at=-math.inf if check is None else check.asked_at)
        return await asyncio.shield(check.measuring)

    def exceeding(self) -> list[SamplerGap]:
        """The gaps of weights that the server may not serve, and that samples asked for in the last hour."""
        if self._limit is None:
            return []
        since = self._monotonic() - _RECENT_SECONDS
        known = [check.gap for check in self._checks.values() if check.asked_at >= since]
        return [gap for gap in known if gap is not None and not gap.is_within(self._limit)]

    def forget(self, archive: str) -> None:
        self._checks.pop(archive, None)

    def forget_all(self) -> None:
        """The server was lost, and another process may answer now."""
        self._checks.clear()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _find(self, name: str) -> _Check | None:
        """A check that is in progress or still holds."""
        if (check := self._checks.get(name)) is None or check.has_raised:
            return None
        is_trouble = check.gap is not None and check.gap.trouble is not None
        if is_trouble and self._monotonic() - check.ended_at >= _RETRY_SECONDS:
            return None
        self._checks.move_to_end(name)
        return check

    def _begin(self, name: str, measure: Measure, *, asked_at: float) -> _Check:
        task = asyncio.create_task(_run(measure))
        check = self._checks[name] = _Check(task, asked_at)
        self._checks.move_to_end(name)
        if len(self._checks) > _KEPT:
            self._checks.popitem(last=False)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._end(name, check))
        return check

    def _end(self, name: str, check: _Check) -> None:
        self._tasks.discard(check.measuring)
        check.ended_at = self._monotonic()
        if check.has_raised and self._checks.get(name) is check:
            del self._checks[name]


async def _run(measure: Measure) -> SamplerGap:
    return await measure()


def _name(model: str, archive: str | None) -> str:
    return f"\0{model}" if archive is None else archive
