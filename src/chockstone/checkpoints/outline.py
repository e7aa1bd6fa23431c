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
from chockstone.checkpoints.tree import MAX_DEPTH, TAG, Reference

VALUE: Final = "value"
TENSOR: Final = "tensor"
MODULE_VERSIONS: Final = "._metadata"  # label of what nn.Module keeps beside a state dict
_BRACKETS: Final = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset{", "}")}

Place = tuple[str, ...]  # labels from the top: unlike a path, {"a.b": 1} and {"a": {"b": 1}} differ in it


@dataclass(frozen=True, slots=True)
class Node:
    """One thing in the state: a value, a tensor, or a container of others."""

    label: str  # how it continues the path of its parent: ".lr", "[0]"
    kind: str  # VALUE, TENSOR, or the type of a container
    text: str = ""  # of a value: as Python spells it, whole; texts are equal only where values are
    children: tuple[Node, ...] = ()
    reference: Reference | None = None  # of a tensor

    @property
    def is_container(self) -> bool:
        return self.kind not in (VALUE, TENSOR)

    @property
    def is_flat(self) -> bool:
        """Whether this is a sequence of plain values, which reads best on one line."""
        return self.kind in _BRACKETS and all(child.kind == VALUE for child in self.children)

    @property
    def summary(self) -> str:
        """A value or a flat sequence whole, of other containers the type."""
        if not self.is_flat:
            return self.text or self.kind
        opening, closing = _BRACKETS[self.kind]
        return opening + ", ".join(child.text for child in self.children) + closing


def outline(skeleton: Any) -> tuple[Node, ...]:  # Any: JSON that may be hostile
    """The top-level entries of a state. Raises DamagedArchive where the skeleton makes no sense."""
    try:
        if not isinstance(skeleton, dict):
            raise TypeError("it is not an object")
        return tuple(_node(label, item, 1) for label, item in skeleton.items())
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


def _node(label: str, item: Any, depth: int) -> Node:
    if depth > MAX_DEPTH + 1:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(item, list):
        return Node(label, "list", children=_indexed(item, depth))
    if not isinstance(item, dict):
        return Node(label, VALUE, text=_text(item))
    if TAG not in item:
        return Node(label, "dict", children=tuple(_node(f".{key}", inner, depth + 1) for key, inner in item.items()))
    tag = item[TAG]
    if tag == "tensor":
        return Node(label, TENSOR, reference=_reference(item))
    if tag in ("tuple", "set", "frozenset"):
        return Node(label, tag, children=_indexed(item["items"], depth))
    if tag in ("dict", "OrderedDict"):
        children = [_node(_key_label(key), inner, depth + 1) for key, inner in item["items"]]
        if "metadata" in item:
            children.append(_node(MODULE_VERSIONS, item["metadata"], depth + 1))
        return Node(label, tag, children=tuple(children))
    return Node(label, VALUE, text=_text(item))


def _indexed(items: Any, depth: int) -> tuple[Node, ...]:
    if not isinstance(items, list):
        raise TypeError("items are not a list")
    return tuple(_node(f"[{index}]", item, depth + 1) for index, item in enumerate(items))


def _reference(item: dict[str, Any]) -> Reference:
    shape = tuple(int(extent) for extent in item["shape"]) if "shape" in item else None
    dtype = str(item["dtype"]) if "dtype" in item else None
    return Reference(str(item["group"]), str(item["key"]), dtype, shape, str(item.get("as", "torch")))


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
