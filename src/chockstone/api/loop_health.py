"""Loop health: how late the event loop ran and what blocked it, as metrics and in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from chockstone.checkpoints import LoopWatchdog, Stall
from chockstone.telemetry.instruments import Instruments

log = logging.getLogger(__name__)
STALL_SECONDS: Final = 0.1  # from then on a delay is a stall
_QUIET_SECONDS: Final = 5.0  # between two warnings


class LoopHealth:
    def __init__(self, instruments: Instruments, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._instruments = instruments
        self._monotonic = monotonic
        self._quiet_until = 0.0
        self._unsaid = 0
        self._max_seconds = 0.0

    def watchdog(self) -> LoopWatchdog:
        """A watchdog that reports to this object."""
        return LoopWatchdog(threshold_seconds=STALL_SECONDS, on_beat=self.beat, on_stall=self.stalled)

    def beat(self, late_seconds: float) -> None:
        self._instruments.loop_was_late(late_seconds)
        if late_seconds > self._max_seconds:
            self._max_seconds = late_seconds
            self._instruments.loop_was_latest(late_seconds)

    def stalled(self, stall: Stall) -> None:
        """At most one warning every few seconds, with the number of stalls not logged before it."""
        if stall.held_seconds < STALL_SECONDS:
            log.debug("event loop late, by no callback of ours seconds=%.3f", stall.seconds)
            return
        self._instruments.loop_was_held()
        if self._monotonic() < self._quiet_until:
            self._unsaid += 1
            return
        stack = stall.stack.rstrip()
        log.warning("event loop held seconds=%.3f unsaid_before=%d by\n%s", stall.held_seconds, self._unsaid, stack)
        self._unsaid = 0
        self._quiet_until = self._monotonic() + _QUIET_SECONDS
