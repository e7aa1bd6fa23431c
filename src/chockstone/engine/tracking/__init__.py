"""Tracking: sends the step history of runs to experiment trackers, each in a process of its own.

The history keeps the points, so a tracker that hangs, fails or is slow delays no step and loses none: its feed reads on
from the last point that the tracker took. This room must not know trackers themselves: those are in ``trackers``.
"""
