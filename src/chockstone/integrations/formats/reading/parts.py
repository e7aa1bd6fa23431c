"""Parts: counts the tensors of each part of a state, and finds the step of a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from chockstone.integrations.formats.reading.foreign_checkpoint import TakenPart

_STEP_KEYS: Final = ("global_step", "step", "iteration", "num_updates")
_STEP_IN_NAME = re.compile(r"(?:\A|[-_.=/])(?:checkpoint|global_?step|step|iter(?:ation)?)[-_=]?(\d{1,18})(?!\d)")
_NUMBER = re.compile(r"(\d{1,18})\Z")


def account(state: Mapping[str, Any], sources: Mapping[str, str] | str) -> tuple[TakenPart, ...]:
    """One line for each top-level key of a state. ``sources``: the file of each key, or the one file of all."""
    parts: list[TakenPart] = []
    for key, value in state.items():
        tensors = list(_tensors(value))
        size_bytes = sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in tensors)
        source = sources if isinstance(sources, str) else sources.get(key, "")
        parts.append(TakenPart(source, key, len(tensors), size_bytes))
    return tuple(parts)


def find_step(state: Mapping[str, Any]) -> tuple[int | None, str]:
    """The step that a state itself tells, and the key that tells it."""
    for key in _STEP_KEYS:
        step = state.get(key)
        if type(step) is int and 0 <= step < 2**63:
            return step, f"the key {key!r}"
    return None, ""


def find_step_in_name(name: str) -> tuple[int | None, str]:
    """The step in a name such as ``checkpoint-500``, ``epoch=1-step=20.ckpt``, ``step_100`` or ``100``."""
    found = _STEP_IN_NAME.search(name) or _NUMBER.match(name)
    return (int(found[1]), f"the name {name!r}") if found else (None, "")


def _tensors(value: Any) -> Iterator[Any]:
    """Every tensor and array once, tied ones included."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, np.ndarray | np.generic) or (hasattr(value, "untyped_storage") and hasattr(value, "dtype")):
        yield value
