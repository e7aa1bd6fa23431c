"""Loop health: how late the event loop ran and what blocked it, as metrics and in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from chockstone.checkpoints import LoopWatchdog, Stall

log = logging.getLogger(__name__)
STALL_SECONDS: Final = 0.1  # from then on a delay is a stall
_QUIET_SECONDS: Final = 5.0  # between two warnings
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopHealth:
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._quiet_until = 0.0
        self._unsaid = 0
        self._registry = CollectorRegistry()
        self._lateness = Histogram(
            "chockstone_loop_stall_seconds",
            "How late the event loop came to a regular beat.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._longest = Gauge(
            "chockstone_loop_stall_max_seconds",
            "The latest beat since the server started.",
            registry=self._registry,
        )
        self._held = Counter(
            "chockstone_loop_held",
            f"Stalls of more than {STALL_SECONDS:g} s in which a callback held the event loop.",
            registry=self._registry,
        )
        self._max_seconds = 0.0

    def watchdog(self) -> LoopWatchdog:
        """A watchdog that reports to this object."""
        return LoopWatchdog(threshold_seconds=STALL_SECONDS, on_beat=self.beat, on_stall=self.stalled)

    def beat(self, late_seconds: float) -> None:
        self._lateness.observe(late_seconds)
        if late_seconds > self._max_seconds:
            self._max_seconds = late_seconds
            self._longest.set(late_seconds)

    def stalled(self, stall: Stall) -> None:
        """At most one warning every few seconds, with the number of stalls not logged before it."""
        if stall.held_seconds < STALL_SECONDS:
            log.debug("event loop late, by no callback of ours seconds=%.3f", stall.seconds)
            return
        self._held.inc()
        if self._monotonic() < self._quiet_until:
            self._unsaid += 1
            return
        stack = stall.stack.rstrip()
        log.warning("event loop held seconds=%.3f unsaid_before=%d by\n%s", stall.held_seconds, self._unsaid, stack)
        self._unsaid = 0
        self._quiet_until = self._monotonic() + _QUIET_SECONDS

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
