"""Positions of data loaders. Each rank of torchtitan has a loader; an archive holds the positions of all of them.

torchtitan's loader pickles its position. It is unpickled where it was made, before a save, and pickled again where it
is loaded, so that no archive holds a pickle: a user who can write to the storage cannot run code in the training.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from torchtitan.components.dataloader import ParallelAwareDataloader

from chockstone.checkpoints.ranks.peers import rank_and_world_size


def gather_positions(loader: Any, *, group: Any = None) -> Any:  # Any: a loader of torchtitan or of the user
    """The positions of all ranks as one state. All ranks call it; ``group`` is the process group that they use."""
    own = position_of(loader)
    found = rank_and_world_size()
    if found is None or found[1] == 1:
        return own
    from torch import distributed

    positions: list[Any] = [None] * found[1]
    distributed.all_gather_object(positions, own, group=group)
    return merge_positions(positions)


def position_of(loader: Any) -> Any:
    """The position of this rank's loader. Of torchtitan's own loader it is plain values."""
    if loader is None:
        return None
    state = loader.state_dict()
    if not isinstance(loader, ParallelAwareDataloader):
        return state
    return {
        key: pickle.loads(value) if isinstance(value, bytes) else value  # noqa: S301  # pickled a line above
        for key, value in state.items()
    }


def merge_positions(positions: list[Any]) -> Any:
    """Positions of several ranks as one; where they are no dicts with keys of their own, that of the first rank."""
    if not all(isinstance(position, Mapping) for position in positions):
        return positions[0]
    return {key: value for position in reversed(positions) for key, value in position.items()}


def move_to(loader: Any, saved: Any) -> None:
    """Move this rank's loader to its saved position."""
    if loader is None:
        return
    if isinstance(loader, ParallelAwareDataloader):
        saved = {key: value if key == "world_size" else pickle.dumps(value) for key, value in saved.items()}
    loader.load_state_dict(saved)
