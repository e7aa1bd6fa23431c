"""Values that all ranks must have from rank 0, so that they decide alike."""

from __future__ import annotations

from typing import TypeVar

from accelerate.utils import broadcast_object_list
from transformers import Trainer

T = TypeVar("T")


def from_rank_0(trainer: Trainer, value: T) -> T:
    """The value that rank 0 has. All ranks call this; without other ranks it returns ``value``."""
    if trainer.args.world_size <= 1:
        return value
    values = [value]
    broadcast_object_list(values)
    return values[0]
