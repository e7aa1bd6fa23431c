"""Progress: writes step, last loss and parent of the live runs to the catalog, now and then.

The journal has these facts, too: after a crash the recovery finds what the catalog missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from chockstone.catalog import Catalog, CatalogError, RunProgress

log = logging.getLogger(__name__)
_INTERVAL_SECONDS: Final = 15.0


class ProgressRecorder:
    def __init__(self, catalog: Catalog, *, of_live_runs: Callable[[], Mapping[str, RunProgress]]) -> None:
        """``of_live_runs`` gives the progress of each live run, as far as it is known."""
        self._catalog = catalog
        self._of_live_runs = of_live_runs
        self._written: dict[str, RunProgress] = {}  # of live runs

    async def keep(self) -> None:
        """Write the progress to the catalog, for ever."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                await self.flush()
            except CatalogError as error:
                log.warning("progress not written error=%s", error)

    async def flush(self) -> None:
        """Write the progress of live runs that changed since the last time. Raises CatalogError."""
        live = self._of_live_runs()
        await self._catalog.runs.record_progress(
            {run_id: progress for run_id, progress in live.items() if self._written.get(run_id) != progress}
        )
        self._written = dict(live)

    async def flush_ended(self, run_id: str, progress: RunProgress | None) -> None:
        """Write the progress of a run that is not live any longer. Raises CatalogError."""
        if progress is not None:
            await self._catalog.runs.record_progress({run_id: progress})
