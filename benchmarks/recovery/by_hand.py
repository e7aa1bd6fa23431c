"""By hand: what a loop without a journal does to lose no step, ``torch.save`` of its state after each.

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
    """Holds the state of an archive in memory and saves it as often as it is told to."""

    def __init__(self, archive: str, directory: str) -> None:
        self._state = state_of(archive)
        self._path = Path(directory) / "state.pt"
        self._path.parent.mkdir(parents=True)

    def save(self, *, count: int, synced: bool) -> float:
        """Seconds of one save out of so many. Each replaces the last once it is whole; ``synced``: on the disk, too."""
        began = time.perf_counter()
        for _ in range(count):
            partial = self._path.with_suffix(".partial")
            torch.save(self._state, partial)
            os.replace(partial, self._path)
            if synced:
                fsync_tree(self._path)
        return (time.perf_counter() - began) / count
