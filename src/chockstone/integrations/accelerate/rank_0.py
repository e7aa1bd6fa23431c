"""What rank 0 decides for all ranks of Accelerate, so that they restore the same checkpoint."""

from __future__ import annotations

from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from chockstone.checkpoints import Checkpointer, RestoreReceipt
from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.restoring.search import CheckpointSearch

T = TypeVar("T")


def from_rank_0(value: T) -> T:
    """The value that rank 0 has. All ranks call this; without other ranks it returns ``value``."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def choose_newest(checkpointer: Checkpointer, *, name: str | None = None) -> RestoreReceipt | None:
    """The newest checkpoint of which every block is sound, or the one of that full name; None at a first start.

    Rank 0 reads it and tells the others, by a receipt without parts. All ranks call this, and raise the same error.
    """
    found: Any = None  # Any: a receipt, its absence, or an error
    if PartialState().is_main_process:
        checkpointer.wait()
        try:
            found = CheckpointSearch(checkpointer.store, checkpointer.prefix, kind="weights", name=name).verify()
        except CheckpointError as error:
            found = error
    found = from_rank_0(found)
    if isinstance(found, CheckpointError):
        raise found
    receipt: RestoreReceipt | None = found
    return receipt
