"""The file watch: a server stops when the files that make its data its own are deleted or replaced under it.

Without its lock another server may use the same data; without its catalog everything that is acknowledged from then
on would be lost. Either way the server ends at once, as if it were killed: journals bring back what was acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chockstone.catalog import SqliteGuard
from chockstone.engine.ownership.data_directory import is_lock_lost

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 2.0  # between two looks


class FileWatch:
    def __init__(self, data: Path, lock: int, guard: SqliteGuard | None) -> None:
        """``lock`` is the descriptor that ``data`` is owned by; no ``guard``: the catalog is not a file."""
        self._data = data
        self._lock = lock
        self._guard = guard

    async def keep(self, end: Callable[[str], None]) -> None:
        """Look again and again; ``end`` is told why the process must not go on, and ends it.

        From the moment a loss is seen nothing else runs on the event loop, so nothing more is acknowledged.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                is_lost, missing = await asyncio.to_thread(self._look)
            except OSError as error:  # a file system that does not answer for a moment
                log.warning("files of the data directory not checked error=%s", error)
                continue
            if is_lost:
                end(
                    f"the lock of the data directory {str(self._data)!r} was deleted or replaced, so another server "
                    "may use it. Make sure that there is no other, and start this one again"
                )
            elif missing is not None and self._guard is not None:
                saved = self._guard.save(missing)
                end(f"the file {str(missing)!r} of the catalog was deleted or replaced under the server; {saved}")

    def _look(self) -> tuple[bool, Path | None]:
        is_lost = is_lock_lost(self._data, self._lock)
        return is_lost, None if is_lost or self._guard is None else self._guard.missing()
