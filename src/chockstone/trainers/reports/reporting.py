"""Reporting: what happens is told to the reports in one thread, in order, off the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from chockstone.trainers.reports.reports import Level, Reports, StepRecord

log = logging.getLogger(__name__)
_LEVELS: Final[Mapping[Level, int]] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Announce(Protocol):
    def __call__(self, text: str, *, level: Level = "info") -> None: ...


class Reporting:
    """Its methods may be called from the loop; none of them blocks it."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, "chockstone-reports")

    async def resume(self, step: int) -> None:
        await self._tell(self._reports.resume, step)

    async def record(self, record: StepRecord) -> None:
        """Until it is written: a trainer never runs ahead of what is known of it."""
        await self._tell(self._reports.record, record)

    async def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        await self._tell(self._reports.evaluated, step, metrics)

    def announce(self, text: str, *, level: Level = "info") -> None:
        log.log(_LEVELS[level], "%s", text)
        self._thread.submit(self._reports.event, text, level=level)

    async def close(self) -> None:
        self._thread.submit(self._reports.close)
        await asyncio.to_thread(self._thread.shutdown)

    async def _tell(self, tell: Callable[..., None], *what: object) -> None:
        await asyncio.shield(asyncio.wrap_future(self._thread.submit(tell, *what)))  # whoever waits: it is told
