"""Background examination: the doctor looks at a server that runs, without holding it up.

One examination at a time runs in a thread with an event loop and a catalog connection of its own. Its result is kept
until the next one ends. It changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CatalogError
from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import CheckpointError
from chockstone.engine.doctor.examination import examine, lasting
from chockstone.engine.doctor.findings import Examination

log = logging.getLogger(__name__)
LIMIT_SECONDS: Final = 300.0
_FRESH_SECONDS: Final = 3600.0
_SHORTEST_PAUSE_SECONDS: Final = 10.0  # between an examination and the next one that a person asks for


@dataclass(frozen=True, slots=True)
class ExaminationReport:
    started_at: datetime  # of the newest examination
    is_running: bool = True
    examined_at: datetime | None = None  # when the examination below ended; None: none has
    seconds: float | None = None  # that it took
    examination: Examination | None = None
    failure: str | None = None  # why the newest one failed


class BackgroundExamination:
    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        *,
        journals: Path,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """``journals``: directory of the runs' journals. An examination is given up after ``limit_seconds``.

        ``catalog`` is the server's; its own connection is not used.
        """
        self._store = store
        self._catalog = catalog
        self._journals = journals
        self._now = now
        self._monotonic = monotonic
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()  # guards the report and what cancels
        self._report: ExaminationReport | None = None
        self._ended_at: float | None = None  # monotonic
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Examination]] | None = None
        self._is_over = False

    def report(self, *, refresh: bool = False) -> ExaminationReport:
        """What is known now. Starts an examination if none has ended within the hour, or with ``refresh``."""
        with self._lock:
            report = self._report
            if report is not None and (report.is_running or not self._is_due(refresh) or self._is_over):
                return report
            report = ExaminationReport(self._now()) if report is None else replace(report, started_at=self._now())
            self._report = replace(report, is_running=True, failure=None)
            threading.Thread(target=self._run, name="doctor", daemon=True).start()
            return self._report

    async def keep(self) -> None:
        """Until cancelled, when the server ends; then a running examination ends, too."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End a running examination, and start none again."""
        with self._lock:
            self._is_over = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)

    def _is_due(self, refresh: bool) -> bool:
        wait = _SHORTEST_PAUSE_SECONDS if refresh else _FRESH_SECONDS
        return self._ended_at is None or self._monotonic() - self._ended_at >= wait

    def _run(self) -> None:
        began = self._monotonic()
        examination, failure = None, None
        try:
            examination = asyncio.run(self._examine())
        except TimeoutError:
            failure = f"the examination took longer than {self._limit_seconds:g} seconds and was given up"
        except asyncio.CancelledError:
            failure = "the server is shutting down"
        except (CatalogError, CheckpointError, OSError) as error:
            failure = str(error)
            log.warning("examination failed error=%s", error)
        except Exception as error:  # the thread must leave a report
            failure = f"{type(error).__name__}: {error}"
            log.exception("examination failed")
        with self._lock:
            assert self._report is not None, "a running examination has a report"
            self._ended_at = self._monotonic()
            self._report = replace(self._report, is_running=False, failure=failure)
            if examination is not None:
                self._report = replace(
                    self._report,
                    examination=examination,
                    examined_at=self._now(),
                    seconds=self._ended_at - began,
                )

    async def _examine(self) -> Examination:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._running = (asyncio.get_running_loop(), task)
            if self._is_over:
                task.cancel()
        try:
            async with asyncio.timeout(self._limit_seconds):
                return await self._look_twice()
        finally:
            with self._lock:
                self._running = None

    async def _look_twice(self) -> Examination:
        """A server at work is between two steps somewhere; what a second look shows as well lasts."""
        async with await self._catalog.reader() as catalog:
            first = await self._look(catalog)
            return lasting(first, await self._look(catalog)) if first.findings else first

    async def _look(self, catalog: Catalog) -> Examination:
        return await examine(catalog, self._store, now=self._now(), journals=self._journals, is_served=True)
