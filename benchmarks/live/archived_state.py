"""Archived states: the state of a checkpoint in memory, for baselines that save the very same state."""

from __future__ import annotations

from chockstone.checkpoints import Archive, load_state


def state_of(archive: str) -> dict[str, object]:
    """A copy in memory: what the library reads back is mapped from the file."""
    with Archive.open(archive) as opened:
        return {name: _copied(part) for name, part in load_state(opened).items()}


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(each) for each in value)
    if hasattr(value, "clone"):
        return value.clone()
    return value.copy() if hasattr(value, "copy") else value
