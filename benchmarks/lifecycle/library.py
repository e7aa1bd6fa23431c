"""The library alone: the durable save of a state that a run has, without a server around it."""

from __future__ import annotations

import time

from benchmarks.live.archived_state import state_of
from chockstone.checkpoints import Checkpointer


class Library:
    """Holds the state of an archive in memory and saves it as often as it is told to."""

    def __init__(self, archive: str, directory: str) -> None:
        self._state = state_of(archive)
        self._checkpointer = Checkpointer(directory)

    def save(self, name: str) -> float:
        """Seconds until it is durable; then it is removed again."""
        began = time.perf_counter()
        saved = self._checkpointer.save(self._state, name=name).result()
        seconds = time.perf_counter() - began
        self._checkpointer.store.delete(saved.name)
        return seconds
