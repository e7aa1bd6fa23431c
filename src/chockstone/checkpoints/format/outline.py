"""Outlines: the skeleton of a state as nodes to walk and to print, without building the state.

Nothing is instantiated, so torch is never imported and hostile text stays text. See ``tree`` for
what the skeleton looks like.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.format.tree import MAX_DEPTH, TAG, TensorReference

VALUE: Final = "value"
TENSOR: Final = "tensor"
MODULE_VERSIONS: Final = "._metadata"  # label of what nn.Module keeps beside a state dict
MAX_NODES: Final = 2_000_000

_SEQUENCES: Final = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset{", "}")}
_MAPPINGS: Final = ("dict", "OrderedDict", "Counter")

Place = tuple[str, ...]  # labels from the top: unlike a path, {"a.b": 1} and {"a": {"b": 1}} differ in it


@dataclass(frozen=True, slots=True)
class Node:
    """One thing in the state: a value, a tensor, or a container of others."""

    label: str  # how it continues the path of its parent: ".lr", "[0]"
    kind: str  # VALUE, TENSOR, or the type of a container
    text: str = ""  # of a value or a sequence of plain values, as Python spells it: equal only if they are
    children: tuple[Node, ...] = ()  # of other containers
    reference: TensorReference | None = None  # of a tensor

    @property
    def is_inner(self) -> bool:
        """Whether this is a container that its children speak for."""
        return bool(self.children)


def outline(skeleton: Any) -> tuple[Node, ...]:  # Any: JSON that may be hostile
    """The top-level entries of a state. Raises DamagedArchive where the skeleton makes no sense."""
    try:
        if not isinstance(skeleton, dict):
            raise TypeError("it is not an object")
        reader = _Reader()
        return tuple(reader.node(label, item, 1) for label, item in skeleton.items())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedArchive(f"state.json does not make sense: {type(error).__name__}: {str(error)[:200]}") from error


def walk(nodes: Sequence[Node]) -> Iterator[tuple[str, Place, Node]]:
    """Every node with its path and its place, parents first."""
    pending: list[tuple[str, Place, Node]] = [("", (), node) for node in reversed(nodes)]
    while pending:
        path, place, node = pending.pop()
        path, place = path + node.label, (*place, node.label)
        yield path, place, node
        pending += [(path, place, child) for child in reversed(node.children)]


def count_tensors(node: Node) -> int:
    return sum(1 for _, _, inner in walk([node]) if inner.kind == TENSOR)


class _Reader:
    def __init__(self) -> None:
        self._nodes = 0

    def node(self, label: str, item: Any, depth: int) -> Node:
        self._nodes += 1
        if depth > MAX_DEPTH + 1 or self._nodes > MAX_NODES:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep or has more than {MAX_NODES} entries")
        if isinstance(item, list):
            return self._sequence(label, "list", item, depth)
        if not isinstance(item, dict):
            return Node(label, VALUE, text=_text(item))
        if TAG not in item:
            inner = tuple(self.node(f".{key}", value, depth + 1) for key, value in item.items())
            return Node(label, "dict", children=inner)
        tag = item[TAG]
        if tag == TENSOR:
            return Node(label, TENSOR, reference=_reference(item))
        if tag in _SEQUENCES:
            return self._sequence(label, tag, item["items"], depth)
        if tag in _MAPPINGS:
            children = [self.node(_key_label(key), value, depth + 1) for key, value in item["items"]]
            if "metadata" in item:
                children.append(self.node(MODULE_VERSIONS, item["metadata"], depth + 1))
            return Node(label, tag, children=tuple(children))
        return Node(label, VALUE, text=_text(item))

    def _sequence(self, label: str, kind: str, items: Any, depth: int) -> Node:
        if not isinstance(items, list):
            raise TypeError("items are not a list")
        if all(map(_is_plain, items)):  # one node for what may be millions of numbers
            opening, closing = _SEQUENCES[kind]
            return Node(label, kind, text=f"{opening}{', '.join(map(_text, items))}{closing}")
        return Node(label, kind, children=tuple(self.node(f"[{i}]", item, depth + 1) for i, item in enumerate(items)))


def _is_plain(item: Any) -> bool:
    if not isinstance(item, dict):
        return not isinstance(item, list)
    return TAG in item and item[TAG] not in (TENSOR, *_SEQUENCES, *_MAPPINGS)


def _reference(item: dict[str, Any]) -> TensorReference:
    shape = tuple(int(extent) for extent in item["shape"]) if "shape" in item else None
    dtype = str(item["dtype"]) if "dtype" in item else None
    return TensorReference(str(item["group"]), str(item["key"]), dtype, shape, str(item.get("as", "torch")))


def _key_label(key: Any) -> str:
    return f".{key}" if isinstance(key, str) else f"[{_text(key)}]"


def _text(item: Any, depth: int = 0) -> str:
    if item is None or isinstance(item, bool | int | float | str):
        return repr(item)
    tag = item[TAG]
    if tag == "tuple" and depth < MAX_DEPTH:  # only keys get here
        return f"({', '.join(_text(inner, depth + 1) for inner in item['items'])})"
    if tag == "int":
        return hex(int(item["hex"], 16))  # decimal digits of a hostile one would take forever
    if tag == "float":
        return repr(float(item["value"]))
    if tag == "complex":
        real, imaginary = item["parts"]
        return f"complex({_text(real, depth + 1)}, {_text(imaginary, depth + 1)})"
    if tag == "bytes":
        return repr(base64.b64decode(item["base64"], validate=True))
    if tag == "torch.Size":
        return f"torch.Size({[int(extent) for extent in item['items']]})"
    if tag == "torch.dtype":
        return f"torch.{item['name']}"
    if tag == "torch.device":
        return f"torch.device({item['name']!r})"
    raise ValueError(f"unknown type {str(tag)[:100]!r}")
