"""A wall clock that jumps: on the path of a server that test_crash_damage.py starts.

Every clock of the server's that tells the date is off by the seconds that the file ``CLOCK_SHIFT`` says.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

if "CLOCK_SHIFT" in os.environ and "chockstone.cli" in sys.orig_argv:
    _file = Path(os.environ["CLOCK_SHIFT"])
    _time = time.time

    def _shifted() -> float:
        return _time() + float(_file.read_text() or 0)

    class ShiftedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]  # any
            return datetime.datetime.fromtimestamp(_shifted(), tz)

    from chockstone.engine import engine

    time.time = _shifted
    engine.datetime = ShiftedDatetime  # type: ignore[misc]  # that is the point
