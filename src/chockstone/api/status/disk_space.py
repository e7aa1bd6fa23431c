"""Disk space: how much is free where the server writes, and in how many days it is used up.

Free space is measured every five minutes and kept for a day, also over a restart. The forecast takes the difference
between the oldest and the newest measurement for what is written in a day; deletes and other programs count, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

log = logging.getLogger(__name__)
RECORD: Final = "disk-space.json"  # in the data directory
INTERVAL_SECONDS: Final = 300.0
_WINDOW_SECONDS: Final = 86_400.0
_SHORTEST_SECONDS: Final = 3600.0  # a forecast from less would follow single saves
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class FreeSpace:
    free_bytes: int
    total_bytes: int
    place: str  # directory

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """None: not known."""

    bytes_per_day: float | None = None  # by which free space shrinks; negative: it grows
    full_in_days: float | None = None  # None also while free space does not shrink


@dataclass(frozen=True, slots=True)
class _Measurement:
    at: float  # seconds since 1970
    free_bytes: int
    place: str


class DiskSpace:
    def __init__(self, places: Sequence[Path], *, record: Path, reserve_bytes: int, now: Callable[[], float]) -> None:
        """``places``: directories in which the server writes. ``record``: the file that keeps the measurements."""
        self._places = places
        self._record = record
        self.reserve_bytes = reserve_bytes
        self._now = now
        self._measured: list[_Measurement] = []  # oldest first

    async def look(self) -> FreeSpace:
        """The file system that has less space left, of those in which the server writes. Raises OSError."""
        return await asyncio.to_thread(self._look)

    def forecast(self, space: FreeSpace) -> DiskForecast:
        now = self._now()
        alike = [each for each in self._measured if each.place == space.place and now - _WINDOW_SECONDS <= each.at]
        if not alike or (seconds := now - alike[0].at) < _SHORTEST_SECONDS:
            return DiskForecast()
        per_day = (alike[0].free_bytes - space.free_bytes) / seconds * _DAY_SECONDS
        if per_day <= 0:
            return DiskForecast(per_day)
        return DiskForecast(per_day, max(0, space.free_bytes - self.reserve_bytes) / per_day)

    async def keep(self) -> None:
        """Measure for ever."""
        await asyncio.to_thread(self.read_record)
        while True:
            try:
                await asyncio.to_thread(self.measure)
            except OSError as error:
                log.warning("free disk space not measured error=%s", error)
            await asyncio.sleep(INTERVAL_SECONDS)

    def measure(self) -> None:
        """Measure and record. For a thread. Raises OSError."""
        found = self._look()
        now = self._now()
        recent = [each for each in self._measured if now - _WINDOW_SECONDS <= each.at <= now]
        self._measured = [*recent, _Measurement(now, found.free_bytes, found.place)]
        unfinished = self._record.with_suffix(".new")
        unfinished.write_bytes(orjson.dumps([[each.at, each.free_bytes, each.place] for each in self._measured]))
        unfinished.replace(self._record)

    def read_record(self) -> None:
        """What an earlier server measured. A record that cannot be read costs the forecast, for an hour."""
        with suppress(OSError, ValueError, TypeError):
            found = orjson.loads(self._record.read_bytes())
            self._measured = [_Measurement(float(at), int(free), str(place)) for at, free, place in found]

    def _look(self) -> FreeSpace:
        return min((_free_space(place) for place in self._places), key=lambda each: each.free_bytes)


def existing(place: Path) -> Path:
    """The directory, or the nearest one above it that exists: a directory that is made later is on the same disk."""
    return next((each for each in (place, *place.parents) if each.exists()), place)


def _free_space(place: Path) -> FreeSpace:
    facts = os.statvfs(existing(place.absolute()))
    return FreeSpace(facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize, str(place))
