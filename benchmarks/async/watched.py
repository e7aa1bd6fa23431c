"""The server, watched more closely: ``chockstone serve`` with a beat every 5 ms instead of every 50.

A stall may fall between two beats in part; of 50 ms, the bound that is promised, all could be unseen.
"""

from __future__ import annotations

from chockstone.api.loop_health import STALL_SECONDS, LoopHealth
from chockstone.checkpoints import LoopWatchdog
from chockstone.cli import main

BEAT_SECONDS = 0.005


def _watchdog(health: LoopHealth) -> LoopWatchdog:
    return LoopWatchdog(
        threshold_seconds=STALL_SECONDS,
        interval_seconds=BEAT_SECONDS,
        on_beat=health.beat,
        on_stall=health.stalled,
    )


if __name__ == "__main__":
    LoopHealth.watchdog = _watchdog  # type: ignore[assignment, method-assign]  # the one thing that differs
    main()
