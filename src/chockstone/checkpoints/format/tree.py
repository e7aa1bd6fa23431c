"""Trees: nested training state taken apart into JSON and tensors, and put together again.

What a state may hold: None, bool, int, float, complex, str, bytes, list, tuple, set, dict (keys of
those scalars), OrderedDict, Counter, torch tensors, dtypes, devices and sizes, numpy arrays and scalars,
and objects with ``state_dict()``. Anything else is refused with its path. Plain values stand in
the JSON as they are; the rest is an object with a ``$`` that names its type.

A tensor reached twice (tied weights) is stored once. Strides are not kept: what comes back is
contiguous, or goes into the strides of the tensor it is restored into.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from chockstone.checkpoints.errors import DamagedArchive, UnstorableValue
from chockstone.checkpoints.format.deferred_tensor import DeferredTensor
from chockstone.checkpoints.format.dtypes import BY_NAME, BY_NUMPY_NAME, BY_TORCH_NAME, Dtype
from chockstone.checkpoints.format.safetensors_header import RESERVED_KEY, is_shape
from chockstone.checkpoints.format.shards import (
    Boxes,
    Pieces,
    TensorShards,
    UnsupportedSharding,
    address_of,
    is_sharded_alike,
    local_tensors_of,
    shards_of,
)
from chockstone.extras import require

Json = Any  # Any: what json.dumps takes
STATE: Final = "state.json"  # the member that holds the JSON
MAX_STATE_BYTES: Final = 64 * 1024**2
TAG: Final = "$"
MAX_DEPTH: Final = 100
MAX_GROUPS: Final = 64  # members of tensors; more top-level keys than this share one
SHARED_GROUP: Final = "state"

_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\Z")
_INT_LIMIT = 2**63
_FLOAT32 = BY_NAME["F32"]


@dataclass(slots=True)
class Leaf:
    """One tensor of the state and the place it will have in the archive."""

    group: str
    key: str
    dtype: Dtype
    shape: tuple[int, ...]
    value: Any  # Any: a torch tensor, numpy array or DeferredTensor; a DTensor, Pieces or Boxes, where it is divided
    aliases: tuple[str, ...] = ()  # other keys of the same group it stands for
    shards: TensorShards | None = None  # what of it this process has, where it is sharded
    local_tensors: tuple[Any, ...] = ()  # the tensors that hold the shards

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the safetensors header; raw types show as bytes."""
        return self.shape if self.dtype.stored == self.dtype.name else (self.dtype.itemsize * math.prod(self.shape),)


@dataclass(slots=True)
class Tree:
    skeleton: dict[str, Json]
    leaves: list[Leaf]


def flatten(state: Mapping[str, object], *, takes_deferred: bool = False) -> Tree:
    """Split ``state`` into JSON and tensors. Tensors are referred to; every other value is copied.

    ``takes_deferred``: the caller writes the tensors itself, and can write a DeferredTensor.
    """
    return _Flattener(takes_deferred=takes_deferred).flatten(state)


class _Refused(Exception):
    """Collects the path of an unstorable value on its way up."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []


class _Flattener:
    def __init__(self, *, takes_deferred: bool) -> None:
        self.leaves: list[Leaf] = []
        self.taken: set[tuple[str, str]] = set()
        self.seen: dict[int, list[Leaf]] = {}  # by address
        self.group = SHARED_GROUP
        self.depth = 0
        self.hashed = 0  # how many keys and sets we are inside of
        self.handlers: dict[type, Callable[[Any, str], Json]] = {
            dict: self._dict,
            list: self._list,
            int: self._int,
            float: self._float,
            str: _same,
            bool: _same,
            type(None): _same,
            tuple: lambda value, prefix: {TAG: "tuple", "items": self._list(value, prefix)},
            OrderedDict: self._ordered,
            Counter: lambda value, prefix: {TAG: "Counter", "items": self._items(value, prefix)},
            set: lambda value, prefix: {TAG: "set", "items": self._members(value, prefix)},
            frozenset: lambda value, prefix: {TAG: "frozenset", "items": self._members(value, prefix)},
            complex: lambda value, _: {TAG: "complex", "parts": [self._float(value.real), self._float(value.imag)]},
            bytes: lambda value, _: {TAG: "bytes", "base64": base64.b64encode(value).decode("ascii")},
            np.ndarray: self._array,
            Pieces: self._divided,
            Boxes: self._divided,
        }
        if takes_deferred:
            self.handlers[DeferredTensor] = lambda value, prefix: self._refer(value, _FLOAT32, prefix, 0)
        if (torch := sys.modules.get("torch")) is not None:  # not imported: no torch value can be here
            self.strided = torch.strided
            self.torch_dtypes = {getattr(torch, n): d for n, d in BY_TORCH_NAME.items() if hasattr(torch, n)}
            self.handlers |= {
                torch.Tensor: self._tensor,
                torch.nn.Parameter: self._tensor,
                torch.nn.Buffer: self._tensor,
                torch.Size: lambda value, _: {TAG: "torch.Size", "items": list(value)},
                torch.dtype: self._dtype,
                torch.device: lambda value, _: {TAG: "torch.device", "name": str(value)},
            }
        if (tensors := sys.modules.get("torch.distributed.tensor")) is not None:
            self.handlers[tensors.DTensor] = self._divided

    def flatten(self, state: Mapping[str, object]) -> Tree:
        if not isinstance(state, Mapping):
            raise UnstorableValue("state", f"<{type(state).__qualname__}> is not a mapping of names to what is saved")
        if not all(type(key) is str for key in state):
            raise UnstorableValue("state", "the state must be a mapping with strings as keys")
        skeleton: dict[str, Json] = {}
        grouped = len(state) <= MAX_GROUPS
        folded: set[str] = set()
        for key, value in state.items():
            own = grouped and _GROUP_NAME.match(key) and key.casefold() not in folded and key.casefold() != SHARED_GROUP
            self.group = key if own else SHARED_GROUP
            folded.add(key.casefold())
            try:
                skeleton[key] = self._encode(value, "" if own else f"{key}.")
            except _Refused as refused:
                raise UnstorableValue(key + "".join(reversed(refused.path)), refused.why) from None
        return Tree(skeleton, self.leaves)

    def _encode(self, value: object, prefix: str) -> Json:
        handler = self.handlers.get(type(value))
        return self._unusual(value, prefix) if handler is None else handler(value, prefix)

    def _unusual(self, value: object, prefix: str) -> Json:
        if isinstance(value, np.generic):
            return {**self._array(np.asarray(value), prefix), "as": "numpy.scalar"}
        state_dict = getattr(value, "state_dict", None)
        if callable(state_dict) and not isinstance(value, type):
            self._enter()  # a state may be an object with a state
            encoded = self._encode(state_dict(), prefix)
            self.depth -= 1
            return encoded
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise _Refused(
            f"<{kind}> cannot be stored. Give its state as numbers, strings, containers or tensors, "
            "or give it state_dict() and load_state_dict()"
        )

    def _dict(self, value: Mapping[object, object], prefix: str) -> Json:
        if not all(type(key) is str and not key.startswith(TAG) for key in value):
            return {TAG: "dict", "items": self._items(value, prefix)}
        out: dict[str, Json] = {}
        self._enter()
        for key, item in value.items():
            try:
                out[key] = self._encode(item, f"{prefix}{key}.")  # type: ignore[index]  # keys are str, checked above
            except _Refused as refused:
                refused.path.append(f".{key}")
                raise
        self.depth -= 1
        return out

    def _ordered(self, value: OrderedDict[object, object], prefix: str) -> Json:
        out = {TAG: "OrderedDict", "items": self._items(value, prefix)}
        if (metadata := getattr(value, "_metadata", None)) is not None:  # module versions, kept by nn.Module
            out["metadata"] = self._encode(metadata, prefix)
        return out

    def _items(self, value: Mapping[object, object], prefix: str) -> list[Json]:
        out: list[Json] = []
        self._enter()
        for key, item in value.items():
            if type(key) not in _KEY_TYPES:
                raise _Refused(f"<{type(key).__qualname__}> cannot be a key of a stored dict")
            try:
                self.hashed += 1
                encoded = self._encode(key, prefix)
                self.hashed -= 1
                out.append([encoded, self._encode(item, f"{prefix}{key}.")])
            except _Refused as refused:
                refused.path.append(f".{key}" if type(key) is str else f"[{key!r}]")
                raise
        self.depth -= 1
        return out

    def _list(self, value: Iterable[object], prefix: str) -> list[Json]:
        out: list[Json] = []
        self._enter()
        for index, item in enumerate(value):
            try:
                out.append(self._encode(item, f"{prefix}{index}."))
            except _Refused as refused:
                refused.path.append(f"[{index}]")
                raise
        self.depth -= 1
        return out

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused(f"nested more than {MAX_DEPTH} levels deep, or refers to itself")

    def _members(self, value: Iterable[object], prefix: str) -> list[Json]:
        self.hashed += 1
        encoded = self._list(sorted(value, key=lambda item: (type(item).__name__, repr(item))), prefix)
        self.hashed -= 1
        return encoded

    def _int(self, value: int, _: str = "") -> Json:
        return value if -_INT_LIMIT <= value < _INT_LIMIT else {TAG: "int", "hex": hex(value)}

    def _float(self, value: float, _: str = "") -> Json:
        return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}

    def _array(self, value: np.ndarray[Any, Any], prefix: str) -> Json:
        dtype = BY_NUMPY_NAME.get(value.dtype.name) if value.dtype.isnative else None
        if dtype is None:
            raise _Refused(f"<numpy.ndarray of {value.dtype!s}> cannot be stored")
        address = value.__array_interface__["data"][0] if value.size else 0
        return {**self._refer(value, dtype, prefix, address), "as": "numpy"}

    def _tensor(self, value: Any, prefix: str) -> Json:  # Any: torch is not imported here
        dtype = self.torch_dtypes.get(value.dtype)
        if dtype is None or value.layout is not self.strided or value.is_meta or value.is_nested:
            raise _Refused(f"<torch.Tensor, {value.dtype}, {value.layout}, on {value.device}> cannot be stored")
        return self._refer(value, dtype, prefix, value.data_ptr())

    def _divided(self, value: Any, prefix: str) -> Json:
        """A DTensor, Pieces or Boxes. The archive stores the whole tensor."""
        try:
            shards = shards_of(value)
        except UnsupportedSharding as error:
            raise _Refused(str(error)) from None
        parts, dtype = local_tensors_of(value), self.torch_dtypes.get(value.dtype)
        if dtype is None or any(part.layout is not self.strided or part.device.type == "meta" for part in parts):
            raise _Refused(f"<{type(value).__name__} of {value.dtype}> cannot be stored")
        reference = self._refer(value, dtype, prefix, address_of(value))
        if (leaf := self.leaves[-1]).value is value:
            leaf.shards, leaf.local_tensors = shards, parts
        return reference

    def _dtype(self, value: object, _: str) -> Json:
        name = str(value).removeprefix("torch.")
        if name not in BY_TORCH_NAME:
            raise _Refused(f"<{value}> cannot be stored")
        return {TAG: "torch.dtype", "name": name}

    def _refer(self, value: Any, dtype: Dtype, prefix: str, address: int) -> dict[str, Json]:
        if self.hashed:
            raise _Refused("a tensor or array cannot be a key of a dict or a member of a set")
        key = _unicode(prefix[:-1]) or "value"
        leaf = self._find_tied(value, dtype, address) if address in self.seen else None
        if leaf is None:
            leaf = Leaf(self.group, self._unique(key), dtype, value.shape, value)
            self.leaves.append(leaf)
            if address:  # empty ones have none
                self.seen.setdefault(address, []).append(leaf)
        elif leaf.group == self.group:
            leaf.aliases = (*leaf.aliases, key)
        reference: dict[str, Json] = {TAG: "tensor", "group": leaf.group, "key": leaf.key}
        if dtype.stored != dtype.name:
            reference |= {"dtype": dtype.name, "shape": list(value.shape)}
        return reference

    def _find_tied(self, value: Any, dtype: Dtype, address: int) -> Leaf | None:
        """The leaf that is the same view of the same memory, if there is one."""
        for leaf in self.seen[address]:
            other = leaf.value
            if other is value:
                return leaf
            if isinstance(other, Pieces | Boxes) or isinstance(value, Pieces | Boxes):
                continue
            if type(other) is np.ndarray or type(value) is np.ndarray:
                same = type(other) is type(value) and other.strides == value.strides
            else:
                same = other.stride() == value.stride() and other.device == value.device
                same = same and other.is_conj() == value.is_conj() and other.is_neg() == value.is_neg()
                same = same and is_sharded_alike(other, value)
            if same and leaf.dtype is dtype and leaf.shape == value.shape:
                return leaf
        return None

    def _unique(self, key: str) -> str:
        """Different paths may spell the same key ({'a.b': …} and {'a': {'b': …}})."""
        unique = key if key != RESERVED_KEY else f"{key}#1"
        count = 1
        while (self.group, unique) in self.taken:
            count += 1
            unique = f"{key}#{count}"
        self.taken.add((self.group, unique))
        return unique


def _unicode(key: str) -> str:
    """A key that any reader of safetensors takes; half a character is spelled out."""
    return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode("utf-8")


def _same(value: Json, _: str) -> Json:
    return value


_KEY_TYPES = (str, int, float, bool, type(None), bytes, tuple)


class TensorReference(NamedTuple):
    """A tensor that a skeleton speaks of."""

    group: str
    key: str
    dtype: str | None  # set where safetensors has no name for the type
    shape: tuple[int, ...] | None
    form: str  # one of _FORMS


_FORMS: Final = ("torch", "numpy", "numpy.scalar")


def unflatten(skeleton: Json, tensor: Callable[[TensorReference], object]) -> Any:
    """Rebuild the state; ``tensor`` supplies each tensor, and is asked again for a tied one."""
    try:
        return {key: _decode(item, tensor) for key, item in skeleton.items()}  # the top is plain, whatever its keys
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedArchive(f"state.json does not make sense: {type(error).__name__}: {str(error)[:200]}") from error


def references(skeleton: Json) -> Iterable[TensorReference]:
    """Every tensor reference in a skeleton, in order."""
    found: list[TensorReference] = []
    unflatten(skeleton, found.append)
    return found


def _decode(node: Json, tensor: Callable[[TensorReference], object]) -> Any:
    if type(node) is list:
        return [_decode(item, tensor) for item in node]
    if type(node) is not dict:
        return node
    if TAG not in node:
        return {key: _decode(item, tensor) for key, item in node.items()}
    decoder = _DECODERS.get(node[TAG])
    if decoder is None:
        raise ValueError(f"unknown type {node[TAG]!r}")
    return decoder(node, tensor)


def _decode_items(node: Json, tensor: Callable[[TensorReference], object]) -> list[Any]:
    return [_decode(item, tensor) for item in node["items"]]


def _decode_pairs(node: Json, tensor: Callable[[TensorReference], object]) -> Iterable[tuple[Any, Any]]:
    return [(_decode(key, _no_tensor), _decode(item, tensor)) for key, item in node["items"]]


def _no_tensor(reference: TensorReference) -> object:
    raise ValueError(f"tensor {reference.key!r:.100} is a key or a member of a set")


def _decode_tensor(node: Json, tensor: Callable[[TensorReference], object]) -> object:
    group, key = node["group"], node["key"]
    if len(node) == 3 and type(group) is type(key) is str:  # most are so: a torch tensor of a type of safetensors
        return tensor(TensorReference(group, key, None, None, "torch"))
    shape = tuple(node["shape"]) if "shape" in node else None
    dtype, form = node.get("dtype"), node.get("as", "torch")
    if not (dtype is None or isinstance(dtype, str)) or form not in _FORMS:
        raise ValueError(f"a tensor of dtype {dtype!r:.100} as {form!r:.100}")
    if shape is not None and not is_shape(shape):
        raise ValueError("a tensor of a shape that there is not")
    return tensor(TensorReference(str(group), str(key), dtype, shape, form))


def _decode_ordered(node: Json, tensor: Callable[[TensorReference], object]) -> OrderedDict[Any, Any]:
    out: OrderedDict[Any, Any] = OrderedDict(_decode_pairs(node, tensor))
    if "metadata" in node:
        out._metadata = _decode(node["metadata"], tensor)  # type: ignore[attr-defined]  # nn.Module's own habit
    return out


def _decode_torch(node: Json, _: Callable[[TensorReference], object]) -> object:
    require("torch", f"a value of type {node[TAG]}")
    import torch

    if node[TAG] == "torch.Size":
        return torch.Size(node["items"])
    if node[TAG] == "torch.device":
        return torch.device(node["name"])
    value = getattr(torch, node["name"]) if node["name"] in BY_TORCH_NAME else None
    if not isinstance(value, torch.dtype):
        raise ValueError(f"unknown dtype {node['name']!r}")
    return value


_DECODERS: Mapping[str, Callable[[Json, Callable[[TensorReference], object]], Any]] = {
    "tensor": _decode_tensor,
    "tuple": lambda node, tensor: tuple(_decode_items(node, tensor)),
    "set": lambda node, _: set(_decode_items(node, _no_tensor)),
    "frozenset": lambda node, _: frozenset(_decode_items(node, _no_tensor)),
    "dict": lambda node, tensor: dict(_decode_pairs(node, tensor)),
    "OrderedDict": _decode_ordered,
    "Counter": lambda node, tensor: Counter(dict(_decode_pairs(node, tensor))),
    "int": lambda node, _: int(node["hex"], 16),
    "float": lambda node, _: float(node["value"]),
    "complex": lambda node, tensor: complex(*(_decode(part, tensor) for part in node["parts"])),
    "bytes": lambda node, _: base64.b64decode(node["base64"], validate=True),
    "torch.Size": _decode_torch,
    "torch.dtype": _decode_torch,
    "torch.device": _decode_torch,
}
