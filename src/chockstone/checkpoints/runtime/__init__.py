"""Threads, flags and the event-loop watchdog that all other parts may use. Imports none of them."""

from chockstone.checkpoints.runtime.threads import tune_for_latency
from chockstone.checkpoints.runtime.watchdog import LoopBlocked, LoopWatchdog, Stall, Stalls

__all__ = ["LoopBlocked", "LoopWatchdog", "Stall", "Stalls", "tune_for_latency"]
