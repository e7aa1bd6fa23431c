"""The clock: by which the server dates what it keeps, and decides what is old enough to delete.

The wall clock may be set to any time by a mistake. So while a process lives, a steady clock is compared with it: when
the wall clock jumps, the server counts time by the steady one, and nothing is deleted by its age. The same holds for
a start when the wall clock is far from the last time that was trusted: the server was off for long, or the clock is
wrong. Ages are trusted again when the wall clock comes back, when a day has passed, or when an operator
confirms the time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from chockstone.checkpoints.stores.posix import put_file
from chockstone.engine.ownership.data_directory import CLOCK_CONFIRMED, CLOCK_RECORD

log = logging.getLogger(__name__)
_TOLERANCE_SECONDS: Final = 300.0  # by which a wall clock may be corrected without a doubt
_DAY_SECONDS: Final = 86400.0  # that a server may have been off, and that an unconfirmed time has to last
_LOOK_SECONDS: Final = 15.0  # between two looks
_WRITTEN_SECONDS: Final = 60.0  # between two records
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC).timestamp()  # that a record may say; later ones cannot be dates


def wall_seconds() -> float:
    """Since 1970."""
    return time.time()


def steady_seconds() -> float:
    """Counts while the machine sleeps, where the system can tell."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """What the next server needs to know; times are in seconds since 1970."""

    trusted_at: float  # the newest time that was trusted
    doubted_at: float | None = None  # the newest one, if it was not
    waited_seconds: float = 0.0  # how long it has been doubted, while servers ran

    @classmethod
    def read(cls, path: Path) -> ClockRecord | None:
        """None: there is none that can be understood."""
        try:
            document = json.loads(path.read_bytes())
            trusted, doubted, waited = (document[name] for name in ("trusted_at", "doubted_at", "waited_seconds"))
            record = cls(float(trusted), None if doubted is None else float(doubted), float(waited))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        times = (record.trusted_at, record.doubted_at or 0.0, record.waited_seconds)
        return record if all(0 <= each <= _LATEST for each in times) else None  # neither infinite nor not a number


@dataclass(frozen=True, slots=True)
class _Trusted:
    """The last moment when the time was known."""

    wall: float
    steady: float
    slack_seconds: float = _TOLERANCE_SECONDS  # by which the wall clock may be ahead of what the steady one says


@dataclass(frozen=True, slots=True)
class _Doubt:
    shift_seconds: float  # of the wall clock, from the time that is known
    since: float  # on the steady clock, less what earlier servers have waited


class ServerClock:
    def __init__(
        self,
        data: Path,
        *,
        wall: Callable[[], float] = wall_seconds,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        """``wall`` is in seconds since 1970."""
        self._record = data / CLOCK_RECORD
        self._confirmation = data / CLOCK_CONFIRMED
        self._wall = wall
        self._steady = steady
        self._trusted = _Trusted(wall(), steady())
        self._offset = self._trusted.wall - self._trusted.steady  # of the time that we go by, from the steady clock
        self._doubt: _Doubt | None = None
        self._lock = threading.RLock()  # the event loop asks for the time while a thread writes the record
        self._written_at = -math.inf
        if (last := ClockRecord.read(self._record)) is not None:
            self._compare_with(last)

    def now(self) -> datetime:
        with self._lock:
            return datetime.fromtimestamp(self._look(), UTC)

    def elapsed(self) -> float:
        """Seconds that no setting of the wall clock changes."""
        return self._steady()

    def trusts_ages(self) -> bool:
        """Whether what looks too old may be deleted."""
        with self._lock:
            self._look()
            return self._doubt is None

    def confirm(self) -> None:
        """The wall clock is right: go by it from now on."""
        with self._lock:
            self._trust(self._wall(), self._steady(), why="is confirmed")

    async def keep(self) -> None:
        """Watch the clock, for ever."""
        while True:
            await asyncio.to_thread(self.check)
            await asyncio.sleep(_LOOK_SECONDS)

    def check(self) -> None:
        """Look for an operator's confirmation, and write down for the next server what time it is."""
        try:
            self._take_confirmation()
            if self._steady() - self._written_at >= _WRITTEN_SECONDS:
                self.write()
        except OSError as error:
            log.warning("time not recorded error=%s", error)

    def write(self) -> None:
        """Raises OSError."""
        with self._lock:
            self._look()
            steady, doubt = self._steady(), self._doubt
            record = ClockRecord(self._known(steady))
            if doubt is not None:
                record = ClockRecord(self._known(steady), self._wall(), steady - doubt.since)
        put_file(self._record, json.dumps(asdict(record)).encode() + b"\n", may_replace=True)
        self._written_at = steady

    def _compare_with(self, last: ClockRecord) -> None:
        """With the last time that an earlier server knew; it may have been off since, for a day without a doubt."""
        now, steady = self._trusted.wall, self._trusted.steady
        self._trusted = _Trusted(last.trusted_at, steady, _DAY_SECONDS)
        gap = now - last.trusted_at
        if self._is_plausible(gap):
            self._trust(now, steady)
            return
        has_lasted = last.doubted_at is not None and -_TOLERANCE_SECONDS <= now - last.doubted_at <= _DAY_SECONDS
        waited = min(max(last.waited_seconds, 0.0), _DAY_SECONDS) if has_lasted else 0.0
        self._doubt = _Doubt(gap, steady - waited)
        self._offset = max(now, last.trusted_at) - steady  # what is made from now on is newer than what there is
        log.warning(
            "the server starts %s %s the last time that it knew, %s: it was off for long, or the clock is wrong. %s",
            _spell_span(gap),
            "after" if gap > 0 else "before",
            _spell(last.trusted_at),
            self._advice(),
        )

    def _look(self) -> float:
        """The time that we go by."""
        steady, wall = self._steady(), self._wall()
        shift = wall - self._known(steady)
        if self._is_plausible(shift):
            self._trust(wall, steady, why="is as it was")
        elif self._doubt is None or abs(shift - self._doubt.shift_seconds) > _TOLERANCE_SECONDS:
            self._doubt = _Doubt(shift, steady)
            log.warning(
                "the wall clock jumped by %s, to %s; the server counts on from the time before the jump, as %s. %s",
                _spell_span(shift, signed=True),
                _spell(wall),
                _spell(steady + self._offset),
                self._advice(),
            )
        elif steady - self._doubt.since >= _DAY_SECONDS:
            self._trust(wall, steady, why="has lasted for a day")
        return steady + self._offset

    def _known(self, steady: float) -> float:
        """What time it is if the wall clock was right when it was last trusted."""
        return self._trusted.wall + steady - self._trusted.steady

    def _is_plausible(self, shift: float) -> bool:
        return -_TOLERANCE_SECONDS <= shift <= self._trusted.slack_seconds

    def _trust(self, wall: float, steady: float, *, why: str = "") -> None:
        self._trusted = _Trusted(wall, steady)
        self._offset = wall - steady
        if self._doubt is not None:
            self._doubt = None
            log.warning("the time %s; deletions by age are resumed now=%s", why, _spell(wall))

    def _take_confirmation(self) -> None:
        if self._confirmation.exists():
            self.confirm()
            self.write()  # first: without the record the confirmation would be forgotten
            self._confirmation.unlink(missing_ok=True)

    def _advice(self) -> str:
        return (
            "Nothing is deleted by its age until this time has lasted for a day: no expired checkpoint, no trash, no "
            f"silent session. If the time is right, confirm it with `touch {self._confirmation}`"
        )


def _spell(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970"


def _spell_span(seconds: float, *, signed: bool = False) -> str:
    try:
        span = str(timedelta(seconds=round(abs(seconds))))
    except OverflowError:
        span = f"{abs(seconds):.0f} s"
    return f"{'-' if seconds < 0 else '+'}{span}" if signed else span
