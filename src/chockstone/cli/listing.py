"""Listings: what ``show`` says of one archive: its facts, its members and tensors, its values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from chockstone.checkpoints import Archive
from chockstone.checkpoints.archive import Tensor
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.outline import TENSOR, Node, count_tensors, outline, walk
from chockstone.checkpoints.snapshot import STATE
from chockstone.checkpoints.tensorfile import SUFFIX
from chockstone.cli.inventory import expires_at
from chockstone.cli.terminal import print_alarm, print_json, print_line, print_table
from chockstone.cli.words import (
    plain,
    printable,
    shorten,
    spell_count,
    spell_duration,
    spell_metrics,
    spell_size,
    spell_time,
)

_BROAD: Final = 10  # children of a container that are shown
_DEEP: Final = 5
_INLINE: Final = 60  # characters


@dataclass(slots=True)
class Listing:
    """What could be read. ``damage`` says why the rest could not."""

    name: str
    archive: Archive
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)  # by member
    state: Any = None  # Any: the skeleton, JSON
    nodes: tuple[Node, ...] = ()
    damage: str | None = None


def list_archive(name: str, archive: Archive, *, now: datetime, as_json: bool, all_values: bool) -> str | None:
    """Print it. Returns the damage that was met, if any; what could be read is printed all the same."""
    listing = _read(name, archive)
    if as_json:
        print_json(_document(listing))
        return listing.damage
    for label, text in _facts(listing, now):
        print_line(f"{label:<10}{text}")
    print_line()
    rows = list(_rows(listing))
    print_table(("OFFSET", "SIZE", "DTYPE", "SHAPE", "NAME"), rows, right=("OFFSET", "SIZE"))
    if listing.nodes:
        print_line()
        print_line("VALUES", style="bold")
        for line in _tree(listing.nodes, all_values=all_values):
            print_line(line)
    if listing.damage:
        print_alarm(f"damaged: {printable(listing.damage)}")
    return listing.damage


def _read(name: str, archive: Archive) -> Listing:
    listing = Listing(name, archive)
    try:
        for member in archive.members:
            if member.endswith(SUFFIX):
                listing.tensors[member] = sorted(archive.tensors(member).values(), key=lambda tensor: tensor.offset)
        if STATE in archive.members:
            listing.state = archive.state()
            listing.nodes = outline(listing.state)
    except DamagedArchive as error:
        listing.damage = str(error)
    return listing


def _facts(listing: Listing, now: datetime) -> Iterator[tuple[str, str]]:
    manifest, layout = listing.archive.manifest, listing.archive.layout
    yield "name", printable(listing.name)
    yield "kind", manifest.kind
    yield "step", "none" if manifest.step is None else str(manifest.step)
    age = spell_duration((now - manifest.created_at).total_seconds())
    yield "created", f"{spell_time(manifest.created_at)}, {age} ago"
    blocks = f"{spell_count(layout.block_count, 'block')} of {spell_size(layout.block_bytes)}"
    yield "size", f"{spell_size(layout.size)} ({layout.size:,} bytes), {blocks}"
    if manifest.pinned:
        yield "pinned", "yes: retention never removes it"
    if (end := expires_at(manifest)) is not None:
        yield "expires", spell_time(end)
    if manifest.metrics:
        yield "metrics", spell_metrics(manifest.metrics)
    if manifest.metadata:
        yield "metadata", shorten(json.dumps(plain(manifest.metadata)), 1000)


def _rows(listing: Listing) -> Iterator[tuple[str, str, str, str, str]]:
    """Members in file order, the tensors of each below it."""
    layout = listing.archive.layout
    real = _real_types(listing.nodes)
    for member in (layout.manifest, *layout.members, layout.commit):
        yield str(member.offset), spell_size(member.size), "", "", printable(member.name)
        for tensor in listing.tensors.get(member.name, ()):
            entry = tensor.entry
            dtype, shape = real.get((member.name, entry.key), (entry.dtype, entry.shape))
            name = f"  {printable(entry.key)}"
            yield str(tensor.offset), spell_size(entry.size), printable(dtype), str(list(shape)), name


def _real_types(nodes: Sequence[Node]) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
    """Types that safetensors has no name for are stored as bytes; the state knows what they are."""
    references = (node.reference for _, _, node in walk(nodes) if node.reference is not None)
    return {
        (reference.group + SUFFIX, reference.key): (reference.dtype, reference.shape)
        for reference in references
        if reference.dtype is not None and reference.shape is not None
    }


def _tree(nodes: Sequence[Node], *, all_values: bool, depth: int = 1) -> Iterator[str]:
    indent = "  " * depth
    shown = [node for node in nodes if node.kind != TENSOR]
    broad = len(shown) if all_values or depth == 1 else _BROAD
    width = max((len(printable(node.label)) for node in shown[:broad]), default=0)
    for node in shown[:broad]:
        label = printable(node.label.removeprefix("."))
        text = _inline(node) if all_values else shorten(_inline(node), _INLINE)
        yield f"{indent}{label:<{width}}  {text}".rstrip()
        if _is_inline(node) or count_tensors(node) == len(node.children):
            continue
        if depth < _DEEP or all_values:
            yield from _tree(node.children, all_values=all_values, depth=depth + 1)
        else:
            yield f"{indent}  … deeper; --values shows all"
    if len(shown) > broad:
        yield f"{indent}… {len(shown) - broad:,} more; --values shows all"


def _inline(node: Node) -> str:
    if not node.is_container:
        return printable(node.text)
    if _is_inline(node):
        inner = ", ".join(printable(child.text) for child in node.children)
        return f"[{inner}]" if node.kind == "list" else f"{node.kind}({inner})"
    tensors = count_tensors(node)
    return f"{node.kind} of {len(node.children):,}" + (f", {spell_count(tensors, 'tensor')}" if tensors else "")


def _is_inline(node: Node) -> bool:
    """A short sequence of plain values reads best on one line."""
    if node.kind not in ("list", "tuple", "set", "frozenset") or any(child.children for child in node.children):
        return False
    if any(child.kind == TENSOR or child.is_container for child in node.children):
        return False
    return sum(len(child.text) + 2 for child in node.children) <= _INLINE


def _document(listing: Listing) -> dict[str, Any]:
    manifest, layout = listing.archive.manifest, listing.archive.layout
    real = _real_types(listing.nodes)
    return {
        "name": listing.name,
        "damage": listing.damage,
        "kind": manifest.kind,
        "step": manifest.step,
        "created_at": manifest.created_at,
        "size_bytes": layout.size,
        "blocks": layout.block_count,
        "block_bytes": layout.block_bytes,
        "pinned": manifest.pinned,
        "expires_at": expires_at(manifest),
        "metrics": dict(manifest.metrics),
        "metadata": dict(manifest.metadata),
        "members": [
            {"name": member.name, "offset": member.offset, "size_bytes": member.size}
            for member in (layout.manifest, *layout.members, layout.commit)
        ],
        "tensors": [
            _tensor_entry(tensor, *real.get((name, tensor.entry.key), (tensor.entry.dtype, tensor.entry.shape)))
            for name, tensors in listing.tensors.items()
            for tensor in tensors
        ],
        "state": listing.state,
    }


def _tensor_entry(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "member": tensor.member,
        "key": tensor.entry.key,
        "dtype": dtype,
        "shape": shape,
        "offset": tensor.offset,
        "size_bytes": tensor.entry.size,
    }
