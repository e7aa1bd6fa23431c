"""Gap checks of one vLLM server: each set of weights is probed once, before the server samples from it.

A measured gap holds until the server is lost, because another process may answer then, or until a later measurement of
the same weights has ended. A probe that failed is repeated in the background: samples do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from chockstone.wire.sampler_gap import SamplerGap

log = logging.getLogger(__name__)
Measure = Callable[[], Awaitable[SamplerGap]]
_KEPT: Final = 10_000  # sets of weights; the least recently asked are dropped
_RETRY_SECONDS: Final = 60.0  # after a probe that could not measure the gap
_RECENT_SECONDS: Final = 3600.0


@dataclass(slots=True, eq=False)
class _Check:
    """What is known of one set of weights, and the measurement in progress."""

    asked_at: float = -math.inf  # when a sample last asked for it
    gap: SamplerGap | None = None  # as last measured; None: it was not measured yet
    tried_at: float = -math.inf  # when a measurement last ended, with a gap or not
    measuring: asyncio.Task[SamplerGap] | None = None


class GapChecks:
    """For one event loop. Weights are named by their archive; None is the base model itself, of the name ``model``."""

    def __init__(self, *, limit: float | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``limit``: of the mean gap; None: nothing is measured unless ``measure`` is called."""
        self._limit = limit
        self._monotonic = monotonic
        self._checks: OrderedDict[str, _Check] = OrderedDict()  # by weights, least recently asked first
        self._tasks: set[asyncio.Task[SamplerGap]] = set()

    def may_serve(self, model: str, archive: str | None) -> bool:
        """Asked for each sample. False: the gap was above the limit when it was last measured, or the probe failed."""
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
        check = self._find_or_add(_name(model, archive))
        check.asked_at = self._monotonic()
        if check.gap is not None:
            return False
        await asyncio.shield(check.measuring or self._begin(check, measure))
        return True

    async def measure(self, model: str, archive: str | None, measure: Measure) -> SamplerGap:
        """Measure now. A measurement in progress is joined.

        What was known holds until the measurement has ended, and stays if the measurement raises.
        """
        check = self._find_or_add(_name(model, archive))
        return await asyncio.shield(check.measuring or self._begin(check, measure))

    def repeat_failed(self, model: str, archive: str | None, measure: Measure) -> None:
        """Measure in the background if the last probe failed a minute ago. Samples stay with the worker until then."""
        if self._limit is None or (check := self._find(_name(model, archive))) is None:
            return
        has_failed = check.gap is not None and check.gap.trouble is not None
        if has_failed and check.measuring is None and self._monotonic() - check.tried_at >= _RETRY_SECONDS:
            self._begin(check, measure).add_done_callback(_log_error)

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
        """The server was lost, and another process may answer now. A measurement in progress is not believed."""
        self._checks.clear()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _find(self, name: str) -> _Check | None:
        if (check := self._checks.get(name)) is not None:
            self._checks.move_to_end(name)
        return check

    def _find_or_add(self, name: str) -> _Check:
        if (check := self._find(name)) is None:
            check = self._checks[name] = _Check()
            if len(self._checks) > _KEPT:
                self._checks.popitem(last=False)
        return check

    def _begin(self, check: _Check, measure: Measure) -> asyncio.Task[SamplerGap]:
        task = check.measuring = asyncio.create_task(_run(measure))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(check, task))
        return task

    def _end(self, check: _Check, task: asyncio.Task[SamplerGap]) -> None:
        self._tasks.discard(task)
        check.measuring, check.tried_at = None, self._monotonic()
        if not task.cancelled() and task.exception() is None:
            check.gap = task.result()


async def _run(measure: Measure) -> SamplerGap:
    return await measure()


def _log_error(task: asyncio.Task[SamplerGap]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("sampler gap not measured again error=%s", error)


def _name(model: str, archive: str | None) -> str:
    return f"\0{model}" if archive is None else archive
