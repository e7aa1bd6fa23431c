"""The file watch: ends the server when its lock file or its catalog file is deleted or replaced.

Without its lock another server may use the same data; without its catalog, later acknowledgements would be lost. The
server ends at once, as if killed: the next start recovers acknowledged operations from the journals.
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
LOOK_SECONDS: Final = 2.0  # between two checks


class FileWatch:
    def __init__(self, data: Path, lock: int, guard: SqliteGuard | None) -> None:
        """``lock`` is the descriptor of the lock on ``data``; no ``guard``: the catalog is not a file."""
        self._data = data
        self._lock = lock
        self._guard = guard

    async def keep(self, end: Callable[[str], None]) -> None:
        """Check until cancelled. ``end`` is called with the reason, and must end the process.

        It is called on the event loop, so nothing is acknowledged after a loss is noticed.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                is_lost, missing = await asyncio.to_thread(self._look)
            except OSError as error:  # a temporary failure of the file system
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
