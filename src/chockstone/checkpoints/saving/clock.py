"""The clock: timestamps of manifests, each later than all timestamps seen before.

The newest checkpoint is the one with the latest timestamp. Clocks jump and differ between machines; the order of
checkpoints must not change with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

LAST_MOMENT: Final = datetime(2242, 3, 16, 12, 56, 31, 999_999, tzinfo=UTC)  # that a tar header has digits for
_TICK: Final = timedelta(microseconds=1)


class Clock:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._newest = datetime.fromtimestamp(0, UTC)

    def now(self) -> datetime:
        """The time of the machine: for ages, not for order."""
        return self._now()

    def observe(self, moment: datetime) -> None:
        """Make every later ``stamp`` come after ``moment``, up to LAST_MOMENT."""
        with self._lock:
            self._newest = max(self._newest, min(moment, LAST_MOMENT))

    def stamp(self) -> datetime:
        with self._lock:
            after = self._newest + _TICK if self._newest < LAST_MOMENT else LAST_MOMENT
            self._newest = min(max(self._now(), after), LAST_MOMENT)
            return self._newest
