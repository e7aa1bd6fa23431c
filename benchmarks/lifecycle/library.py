"""The library alone: durable saves of the state of a run, without a server."""

from __future__ import annotations

import time

from benchmarks.live.archived_state import state_of
from chockstone.checkpoints import Checkpointer


class LibraryBaseline:
    """Holds the state of an archive in memory, and saves it when called. Runs in a process of its own."""

    def __init__(self, archive: str, directory: str) -> None:
        self._state = state_of(archive)
        self._checkpointer = Checkpointer(directory)

    def save(self, name: str) -> float:
        """Returns the seconds until the save was durable. The saved archive is deleted afterwards."""
        began = time.perf_counter()
        saved = self._checkpointer.save(self._state, name=name).result()
        seconds = time.perf_counter() - began
        self._checkpointer.store.delete(saved.name)
        return seconds
