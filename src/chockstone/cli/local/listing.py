"""Shows the facts, members, tensors and values of one archive (``show``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import DamagedArchive
from chockstone.checkpoints.format.outline import MODULE_VERSIONS, TENSOR, Node, count_tensors, outline, walk
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.reading.archive import ArchiveTensor
from chockstone.cli.local.inventory import expires_at
from chockstone.cli.output.formatting import (
    format_count,
    format_duration,
    format_metrics,
    format_size,
    format_time,
    plain,
    printable,
    shorten,
)
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table

_BROAD: Final = 10  # children of a container that are shown
_DEEP: Final = 5
_LONG: Final = 60  # characters of a value


@dataclass(slots=True)
class ArchiveListing:
    """What could be read. ``damage`` says why the rest could not."""

    name: str
    archive: Archive
    tensors: dict[str, list[ArchiveTensor]] = field(default_factory=dict)  # by member
    state: Any = None  # Any: the skeleton, JSON
    nodes: tuple[Node, ...] = ()
    damage: str | None = None


def list_archive(name: str, archive: Archive, *, now: datetime, as_json: bool, all_values: bool) -> str | None:
    """Print it. Returns the damage that was met, if any; what could be read is printed all the same."""
    listing = _read(name, archive)
    if as_json:
        print_json(_document(listing))
    else:
        _print(listing, now, all_values=all_values)
    if listing.damage:
        print_stderr(f"chockstone: {name} is damaged, and listed only in part: {listing.damage}")
    return listing.damage


def _print(listing: ArchiveListing, now: datetime, *, all_values: bool) -> None:
    for label, text in _facts(listing, now):
        print_line(f"{label:<10}{text}")
    print_line()
    print_table(("OFFSET", "SIZE", "DTYPE", "SHAPE", "NAME"), list(_rows(listing)), right=("OFFSET", "SIZE"))
    if listing.nodes:
        print_line()
        print_line("VALUES", style="bold")
        for line in _tree(listing.nodes, all_values=all_values):
            print_line(line)


def _read(name: str, archive: Archive) -> ArchiveListing:
    listing = ArchiveListing(name, archive)
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


def _facts(listing: ArchiveListing, now: datetime) -> Iterator[tuple[str, str]]:
    manifest, layout = listing.archive.manifest, listing.archive.layout
    yield "name", printable(listing.name)
    yield "kind", manifest.kind
    yield "step", "none" if manifest.step is None else str(manifest.step)
    age = format_duration((now - manifest.created_at).total_seconds())
    yield "created", f"{format_time(manifest.created_at)}, {age} ago"
    blocks = f"{format_count(layout.block_count, 'block')} of {format_size(layout.block_bytes)}"
    yield "size", f"{format_size(layout.size)} ({layout.size:,} bytes), {blocks}"
    if manifest.pinned:
        yield "pinned", "yes: no retention rule removes it"
    if (end := expires_at(manifest)) is not None:
        yield "expires", format_time(end)
    if manifest.metrics:
        yield "metrics", format_metrics(manifest.metrics)
    if manifest.metadata:
        yield "metadata", shorten(json.dumps(plain(manifest.metadata)), 1000)


def _rows(listing: ArchiveListing) -> Iterator[tuple[str, str, str, str, str]]:
    """Members in file order, the tensors of each below it."""
    layout = listing.archive.layout
    real = _real_types(listing.nodes)
    for member in (layout.manifest, *layout.members, layout.commit):
        yield str(member.offset), format_size(member.size), "", "", printable(member.name)
        for tensor in listing.tensors.get(member.name, ()):
            entry = tensor.entry
            dtype, shape = real.get((member.name, entry.key), (entry.dtype, entry.shape))
            name = f"  {printable(entry.key)}"
            yield str(tensor.offset), format_size(entry.size), printable(dtype), str(list(shape)), name


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
    shown = [node for node in nodes if node.kind != TENSOR and (all_values or node.label != MODULE_VERSIONS)]
    rest = [] if all_values or depth == 1 else shown[_BROAD:]
    shown = shown[: len(shown) - len(rest)]
    labels = [printable(node.label.removeprefix(".")) for node in shown]
    width = max(map(len, labels), default=0)
    for label, node in zip(labels, shown, strict=True):
        text = _summary(node)
        yield f"{indent}{label:<{width}}  {text if all_values else shorten(text, _LONG)}"
        if not _holds_values(node.children):
            continue
        if all_values or depth < _DEEP:
            yield from _tree(node.children, all_values=all_values, depth=depth + 1)
        else:
            yield f"{indent}  … deeper; --values shows all"
    if rest:
        yield f"{indent}… {len(rest):,} more; --values shows all"


def _summary(node: Node) -> str:
    if node.text:
        return printable(node.text)
    tensors = count_tensors(node)
    counted = f", {format_count(tensors, 'tensor')}" if tensors else ""
    return f"{node.kind} of {sum(child.label != MODULE_VERSIONS for child in node.children):,}{counted}"


def _holds_values(nodes: Sequence[Node]) -> bool:
    return any(inner.kind != TENSOR and not inner.is_inner for _, _, inner in walk(nodes))


def _document(listing: ArchiveListing) -> dict[str, Any]:
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


def _tensor_entry(tensor: ArchiveTensor, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "member": tensor.member,
        "key": tensor.entry.key,
        "dtype": dtype,
        "shape": shape,
        "offset": tensor.offset,
        "size_bytes": tensor.entry.size,
    }
