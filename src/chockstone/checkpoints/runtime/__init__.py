"""Threads, flags and the event-loop watchdog that the other rooms share."""
