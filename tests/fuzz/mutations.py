"""Mutations: ways to break an archive, and the attacker's way to make it look whole again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import xxhash

from chockstone.checkpoints.format.layout import plan_layout
from chockstone.checkpoints.format.manifest import render_head, render_tail
from chockstone.checkpoints.format.tar import BLOCK, PAGE
from support.hostile_archives import MTIME, fix_checksum

FIELDS: Final = {  # of a tar header: (offset, length)
    "name": (0, 100),
    "mode": (100, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "checksum": (148, 8),
    "type": (156, 1),
    "link": (157, 100),
    "magic": (257, 8),
    "prefix": (345, 155),
}


@dataclass(frozen=True)
class Mutation:
    """One change. ``at`` and ``to`` are fractions of the length, so that any two numbers make sense."""

    kind: str
    at: float
    to: float
    content: bytes

    def apply(self, archive: bytes) -> bytes:
        start = int(self.at * len(archive))
        other = int(self.to * len(archive))
        return KINDS[self.kind](archive, start, other, self.content or b"\0")


def _flip(archive: bytes, start: int, _: int, content: bytes) -> bytes:
    flipped = bytes([archive[start] ^ (1 << content[0] % 8)]) if start < len(archive) else b""
    return archive[:start] + flipped + archive[start + 1 :]


def _write(archive: bytes, start: int, _: int, content: bytes) -> bytes:
    return archive[:start] + content + archive[start + len(content) :]


def _insert(archive: bytes, start: int, _: int, content: bytes) -> bytes:
    return archive[:start] + content + archive[start:]


def _delete(archive: bytes, start: int, other: int, _: bytes) -> bytes:
    return archive[: min(start, other)] + archive[max(start, other) :]


def _truncate(archive: bytes, start: int, _: int, __: bytes) -> bytes:
    return archive[:start]


def _copy_page(archive: bytes, start: int, other: int, _: bytes) -> bytes:
    start, other = start // PAGE * PAGE, other // PAGE * PAGE
    page = archive[other : other + PAGE]
    return archive[:start] + page + archive[start + len(page) :]


def _zero(archive: bytes, start: int, other: int, _: bytes) -> bytes:
    low, high = sorted((start, other))
    return archive[:low] + bytes(high - low) + archive[high:]


def _edit_header(archive: bytes, start: int, _: int, content: bytes) -> bytes:
    """A field of the nearest tar header says something else, under a right checksum."""
    work = bytearray(archive)
    place = work.rfind(b"ustar", 0, start + BLOCK) - 257
    if place < 0 or place + BLOCK > len(work):
        return archive
    names = sorted(FIELDS)
    offset, length = FIELDS[names[content[0] % len(names)]]
    value = content[1 : 1 + length].ljust(min(length, 4), b"\0")
    work[place + offset : place + offset + len(value)] = value
    fix_checksum(memoryview(work)[place : place + BLOCK])
    return bytes(work)


KINDS: Final[dict[str, Callable[[bytes, int, int, bytes], bytes]]] = {
    "flip": _flip,
    "write": _write,
    "insert": _insert,
    "delete": _delete,
    "truncate": _truncate,
    "copy-page": _copy_page,
    "zero": _zero,
    "edit-header": _edit_header,
}


def reseal(archive: bytes, *, edit: Callable[[dict[str, object]], object] = lambda _: None) -> bytes:
    """Digests, COMMIT and the head made right again, as far as the manifest can still be read."""
    try:
        size = int(archive[PAGE - BLOCK + 124 : PAGE - BLOCK + 135], 8)
        payload = archive[PAGE : PAGE + size]
        document = json.loads(payload)
        edit(document)
        members = [(str(member["name"]), int(member["size"])) for member in document["members"]]
        block_bytes = int(document["block_bytes"])
        layout = plan_layout(members, manifest_bytes=size, block_bytes=block_bytes)
        if layout.size != len(archive) or not 512 <= block_bytes <= 2**24:
            return archive
        ranges = [layout.block_range(index) for index in range(layout.block_count)]
        document["blocks"] = "".join(xxhash.xxh3_128_hexdigest(archive[start:end]) for start, end in ranges)
        sealed = json.dumps(document, indent=1).encode("ascii").ljust(size - 1) + b"\n"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, UnicodeError):
        return archive
    if len(sealed) != size:
        return archive
    tail = render_tail(sealed, layout, mtime=MTIME)
    return render_head(sealed, mtime=MTIME) + archive[layout.body_offset : layout.body_end] + tail
