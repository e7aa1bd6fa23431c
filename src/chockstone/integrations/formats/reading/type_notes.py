"""Type notes: the structure of an exported state, kept beside files that cannot express it.

``torch.load(weights_only=True)`` reads no numpy arrays and no frozen sets, and DCP turns all keys into strings. So an
export writes tensors and sets in their place, and adds the skeleton of the state (``checkpoints.format.tree``) with the
path of each tensor. Other programs ignore the notes; an import rebuilds the state from them, exactly.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import CheckpointError, ImportRefused
from chockstone.checkpoints.format.tree import MAX_STATE_BYTES, TAG, TensorReference, flatten, unflatten

NOTES: Final = "chockstone.json"  # a record of a torch file, a file of a DCP directory
_TENSOR: Final = "tensor"
_MISFITS: Final = (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)

Path = tuple[str | int, ...]  # keys and indices from the top; a key that is neither text nor a number as text


def make_plain(state: Any) -> tuple[Any, Counter[str]]:  # Any: a state and its copy
    """``state`` with numpy arrays and scalars as tensors and frozen sets as sets, and how many of each there were.

    A tied tensor is one object in the copy, too, so that ``torch.save`` writes it once.
    """
    import torch

    counts: Counter[str] = Counter()
    tensors: dict[tuple[object, ...], Any] = {}

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([convert(item) for item in value])
        if kind in (dict, OrderedDict, Counter):
            rebuilt: Any = kind({key: convert(item) for key, item in value.items()})
            if hasattr(value, "_metadata"):  # module versions, kept by nn.Module
                rebuilt._metadata = value._metadata
            return rebuilt
        if isinstance(value, np.ndarray | np.generic):
            counts["numpy array" if kind is np.ndarray else "numpy number"] += 1
            return torch.from_numpy(np.array(value))
        if kind is frozenset:
            counts["frozenset"] += 1
            return set(value)
        if isinstance(value, torch.Tensor) and value.numel():
            view = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            return tensors.setdefault(view, value)
        return value

    return convert(state), counts


def encode_notes(state: Mapping[str, Any]) -> bytes:
    """The notes about a state, for ``apply_notes``."""
    skeleton = flatten(state).skeleton
    places: dict[tuple[str, str], Path] = {}
    for group, key, path in _find_tensors(skeleton, ()):
        places.setdefault((group, key), path)  # the first of tied ones
    tensors = [{"group": group, "key": key, "path": path} for (group, key), path in places.items()]
    return json.dumps({"state": skeleton, "tensors": tensors}, separators=(",", ":")).encode("ascii")


def apply_notes(content: bytes, loaded: Any, *, name: str) -> dict[str, Any]:
    """The state that notes describe, with the tensors that were loaded from ``name``.

    Raises ImportRefused if the notes do not fit what was loaded.
    """
    try:
        if len(content) > 2 * MAX_STATE_BYTES:
            raise ValueError(f"{len(content)} bytes")
        notes = json.loads(content)
        places = {(str(note["group"]), str(note["key"])): note["path"] for note in notes["tensors"]}
        state: dict[str, Any] = unflatten(notes["state"], lambda wanted: _take(wanted, loaded, places))
    except (*_MISFITS, CheckpointError) as error:
        raise ImportRefused(
            f"the notes {NOTES!r} of {name!r} do not fit its content: {error!r:.200}. Export the checkpoint again"
        ) from error
    return state


def _find_tensors(node: Any, path: Path) -> Iterator[tuple[str, str, Path]]:  # Any: JSON of a skeleton
    """Group, key and path of each tensor in a skeleton."""
    if not isinstance(node, dict | list):
        return
    fields: Any = node
    tag = node.get(TAG) if isinstance(node, dict) else None
    if tag == _TENSOR:
        yield fields["group"], fields["key"], path
        return
    items: Any
    if tag is None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
    elif tag == "tuple":
        items = enumerate(fields["items"])
    elif tag in ("dict", "OrderedDict", "Counter"):
        items = [(_key_of(key), item) for key, item in fields["items"]]
    else:
        return
    for key, item in items:
        yield from _find_tensors(item, (*path, key))


def _key_of(node: Any) -> str | int:
    key = unflatten({"key": node}, lambda reference: reference)["key"]
    return key if type(key) in (str, int) else str(key)


def _take(wanted: TensorReference, loaded: Any, places: Mapping[tuple[str, str], Any]) -> Any:
    """The loaded tensor that a reference of the skeleton means, in the form that it had."""
    import torch

    found = loaded
    for part in places[wanted.group, wanted.key]:
        found = found[part] if isinstance(found, list | tuple) else found[_same_key(found, part)]
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"{wanted.key!r} is a {type(found).__name__}, not a tensor")
    if wanted.form == "torch":
        return found
    array = found.numpy()
    return array[()] if wanted.form == "numpy.scalar" else array


def _same_key(container: Mapping[Any, Any], part: object) -> Any:
    """The key of a dict that a part of a path means: the same, or one that reads the same, where DCP made it text."""
    if part in container:
        return part
    return next(key for key in container if str(key) == str(part))
