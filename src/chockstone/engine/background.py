"""Background tasks of the engine, and the flag that ends them. Tasks wait for the catalog; failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from chockstone.catalog.database.retry import context_that_waits_for_catalog

log = logging.getLogger(__name__)


class Shutdown:
    """One flag that tells every part of the engine that the server is stopping."""

    def __init__(self) -> None:
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    def begin(self) -> None:
        """From here on nothing new is started. What is left is the next server's work."""
        self._has_begun = True


class BackgroundTasks:
    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        # A task is not retried, so it waits until the catalog is back.
        context = context_that_waits_for_catalog(is_over=lambda: self._shutdown.has_begun)
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def drained(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed error=%s", error, exc_info=error)
