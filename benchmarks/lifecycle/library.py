"""The library alone: the durable save of a state that a run has, without a server around it."""

from __future__ import annotations

import time

from chockstone.checkpoints import Archive, Checkpointer, load_state


class Library:
    """Holds the state of an archive in memory and saves it as often as it is told to."""

    def __init__(self, archive: str, directory: str) -> None:
        with Archive.open(archive) as opened:
            self._state = {name: in_memory(part) for name, part in load_state(opened).items()}
        self._checkpointer = Checkpointer(directory)

    def save(self, name: str) -> float:
        """Seconds until it is durable; then it is removed again."""
        began = time.perf_counter()
        saved = self._checkpointer.save(self._state, name=name).result()
        seconds = time.perf_counter() - began
        self._checkpointer.store.delete(saved.name)
        return seconds


def in_memory(value: object) -> object:
    """A copy: what is read back is mapped from the file."""
    if isinstance(value, dict):
        return {key: in_memory(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(in_memory(each) for each in value)
    if hasattr(value, "clone"):
        return value.clone()
    return value.copy() if hasattr(value, "copy") else value
