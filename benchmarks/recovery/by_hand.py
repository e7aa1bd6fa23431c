"""By hand: the baseline of the journal, a loop that calls ``torch.save`` after every step to lose none.

Runs in a process of its own; see ``benchmarks/harness/remote.py``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from benchmarks.harness.disk import fsync_tree
from benchmarks.live.archived_state import state_of


class ByHand:
    """Holds the state of an archive in memory, and saves it when called."""

    def __init__(self, archive: str, directory: str) -> None:
        self._state = state_of(archive)
        self._path = Path(directory) / "state.pt"
        self._path.parent.mkdir(parents=True)

    def save(self, *, count: int, synced: bool) -> float:
        """Save ``count`` times, each by a rename over the last; returns the seconds of one. ``synced``: with fsync."""
        began = time.perf_counter()
        for _ in range(count):
            partial = self._path.with_suffix(".partial")
            torch.save(self._state, partial)
            os.replace(partial, self._path)
            if synced:
                fsync_tree(self._path)
        return (time.perf_counter() - began) / count
