"""Hostile archives, made to order: what an attacker who knows the format would put into a store.

Unless the lie is about the seal itself, everything around it is right: tar checksums, block
digests, the size and COMMIT. What is left to refuse the file is the check that the lie is about.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import xxhash

from chockstone.checkpoints.format.layout import Layout, body_bytes, choose_block_bytes, count_blocks, plan_layout
from chockstone.checkpoints.format.manifest import render_head, render_tail
from chockstone.checkpoints.format.tar import BLOCK, PAGE, render_headers, round_up

CREATED_AT: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
MTIME: Final = int(CREATED_AT.timestamp())
MEBIBYTE: Final = 1024 * 1024

Document = dict[str, Any]
Members = Sequence[tuple[str, bytes]]


def encode_manifest(document: Document) -> bytes:
    return pad_manifest(json.dumps(document).encode("ascii"))


def pad_manifest(text: bytes) -> bytes:
    return text.ljust(round_up(len(text) + 1, PAGE) - 1, b" ") + b"\n"


def forge(
    members: Members,
    *,
    edit: Callable[[Document], object] = lambda _: None,
    edit_body: Callable[[bytearray, Layout], object] = lambda *_: None,
    encode: Callable[[Document], bytes] = encode_manifest,
    created_at: datetime = CREATED_AT,
) -> bytes:
    """A sealed archive of ``members``, whatever they are. ``edit_body`` sees the body at its final offsets.

    The library's checks are never asked; digests and seal are made after both edits.
    """
    sizes = [(name, len(content)) for name, content in members]
    mtime = int(created_at.timestamp())
    length = body_bytes(sizes)
    block_bytes = choose_block_bytes(length)
    document: Document = {
        "format": "chockstone-archive",
        "version": 1,
        "kind": "weights",
        "step": 1,
        "created_at": created_at.isoformat(timespec="microseconds"),
        "pinned": False,
        "ttl_seconds": None,
        "metrics": {},
        "metadata": {},
        "members": [{"name": name, "size": size} for name, size in sizes],
        "digest": "xxh3-128",
        "block_bytes": block_bytes,
        "blocks": "00" * 16 * count_blocks(length, block_bytes),
    }
    probe = dict(document)
    edit(probe)
    layout = plan_layout(sizes, manifest_bytes=len(encode(probe)), block_bytes=block_bytes)
    body = bytearray()
    for member, (_, content) in zip(layout.members, members, strict=True):
        body += render_headers(member.name, size=member.size, header_offset=member.header_offset, mtime=mtime)
        body += content + bytes(-len(content) % BLOCK)
    whole = bytearray(layout.body_offset) + body
    edit_body(whole, layout)
    document["blocks"] = "".join(
        xxhash.xxh3_128_hexdigest(bytes(whole[slice(*layout.block_range(index))]))
        for index in range(layout.block_count)
    )
    edit(document)
    payload = encode(document)
    return render_head(payload, mtime=mtime) + whole[layout.body_offset :] + render_tail(payload, layout, mtime=mtime)


def tensor_file(header: object, data: bytes) -> bytes:
    """A safetensors member with that header, JSON or raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode("ascii")
    return struct.pack("<Q", len(text)) + text + data


def tensor_entry(dtype: str, shape: Sequence[object], start: int, end: int) -> Document:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


GOOD_TENSORS: Final = tensor_file(
    {"w": tensor_entry("F32", [2], 0, 8), "b": tensor_entry("U8", [3], 8, 11)}, b"\1" * 11
)
REFERENCE: Final[Mapping[str, Any]] = {"$": "tensor", "group": "model", "key": "w"}
GOOD_STATE: Final[Mapping[str, Any]] = {"model": {"w": REFERENCE}, "epoch": 3}


def with_state(state: object) -> bytes:
    """A sealed archive with that ``state.json`` (JSON or raw bytes) and sound tensors ``w`` and ``b``."""
    text = state if isinstance(state, bytes) else json.dumps(state).encode("ascii")
    return forge([("state.json", text), ("model.safetensors", GOOD_TENSORS)])


def with_node(node: object) -> bytes:
    return with_state({"model": {"w": REFERENCE}, "x": node})


def with_tensors(content: bytes) -> bytes:
    """A sealed archive with a sound ``state.json`` and that ``model.safetensors``."""
    return forge([("state.json", json.dumps(GOOD_STATE).encode()), ("model.safetensors", content)])


def with_names(*names: str) -> bytes:
    return forge([(name, b"x") for name in names])


def with_manifest(**fields: object) -> bytes:
    return forge([("state.json", b"{}")], edit=lambda document: document.update(fields))


def with_members(*members: object) -> bytes:
    return with_manifest(members=list(members))


def without(key: str) -> bytes:
    return forge([("state.json", b"{}")], edit=lambda document: document.pop(key))


def fix_checksum(header: bytearray | memoryview) -> None:
    """Make a changed 512-byte tar header valid again."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)


def with_header(**fields: bytes) -> bytes:
    """The tar header of state.json says something else, with a right checksum; digests agree with it."""
    places = {"name": 0, "mode": 100, "uid": 108, "size": 124, "mtime": 136, "type": 156, "link": 157, "device": 329}

    def edit_body(whole: bytearray, layout: Layout) -> None:
        header = memoryview(whole)[layout.members[0].offset - BLOCK : layout.members[0].offset]
        for key, value in fields.items():
            header[places[key] : places[key] + len(value)] = value
        fix_checksum(header)

    return forge([("state.json", b"{}"), ("model.safetensors", GOOD_TENSORS)], edit_body=edit_body)


def header_loop() -> bytes:
    """PAX headers of PAX headers, for as long as the member is."""

    def edit_body(whole: bytearray, layout: Layout) -> None:
        start, end = layout.body_offset, layout.members[0].offset + layout.members[0].size
        for offset in range(start, end - BLOCK, BLOCK):
            header = bytearray(whole[layout.members[0].offset - BLOCK : layout.members[0].offset])
            header[124:136] = b"%011o\0" % 0
            header[156:157] = b"x"
            fix_checksum(header)
            whole[offset : offset + BLOCK] = header

    return forge([("state.json", b" " * 65536)], edit_body=edit_body)


def with_manifest_size(size: bytes) -> bytes:
    """The one size field that is read before anything can be checked."""
    content = bytearray(with_state(GOOD_STATE))
    content[PAGE - BLOCK + 124 : PAGE - BLOCK + 124 + len(size)] = size
    fix_checksum(memoryview(content)[PAGE - BLOCK : PAGE])
    return bytes(content)


def other_tar(*infos: tarfile.TarInfo, contents: Sequence[bytes] = ()) -> bytes:
    """A tar of someone else's making, large enough to be looked at."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for index, info in enumerate(infos):
            content = contents[index] if index < len(contents) else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue().ljust(8 * PAGE, b"\0")


def manifest_alone() -> bytes:
    """A foreign tar whose first member happens to be called manifest.json and starts on page one."""
    payload = pad_manifest(b'{"name": "a web extension", "version": 1}')
    return render_head(payload, mtime=MTIME) + bytes(4 * PAGE)


def zip_archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00." + bytes(16384))
    return stream.getvalue()


def deep(depth: int, *, opening: bytes = b"[", closing: bytes = b"]", core: bytes = b"") -> bytes:
    return opening * depth + core + closing * depth


def many_folders(count: int) -> bytes:
    """Names as deep as they may be, no two of which share a folder."""
    names = [f"{index:05d}" + "/a" * 509 for index in range(count)]
    return forge([], edit=lambda document: document.update(members=[{"name": n, "size": 0} for n in names]))


def swapped_commit() -> bytes:
    """The COMMIT of one archive under another of the same size."""
    one, other = with_node(1), with_node(2)
    return one[: -2 * PAGE] + other[-2 * PAGE :]


def never_finished() -> bytes:
    """All but the tail, as a writer that died after the body leaves it."""
    content = bytearray(with_state(GOOD_STATE))
    size = len(content)
    start = content.rindex(b"PaxHeader/COMMIT")
    content[start:] = bytes(size - start)
    return bytes(content)
