"""Safetensors headers: written so that tensor data starts on a page, read without trust.

Tensors are ordered by element size, largest first, then by key: packed without holes, as the
format demands, every tensor is aligned to its elements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from chockstone.checkpoints.errors import CheckpointError, DamagedArchive
from chockstone.checkpoints.format.dtypes import STORED_ITEMSIZE
from chockstone.checkpoints.format.manifest import parse_json
from chockstone.checkpoints.format.tar import PAGE, round_up

SUFFIX: Final = ".safetensors"
LENGTH_BYTES: Final = 8  # little-endian length of the JSON, first in the file
MAX_HEADER_BYTES: Final = 100_000_000  # the safetensors package's own limit
MAX_DIMENSIONS: Final = 64
RESERVED_KEY: Final = "__metadata__"
_NUMBERS: Final = frozenset({int})  # and not bool, which JSON and Python take for one


class TensorEntry(NamedTuple):
    """One tensor inside a member; ``start`` counts from the member's first byte."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def count_bytes(dtype: str, shape: Sequence[int]) -> int:
    return STORED_ITEMSIZE[dtype] * math.prod(shape)


def is_shape(extents: Sequence[object]) -> bool:
    """Whether a tensor can have this shape, here and in torch and numpy."""
    if len(extents) > MAX_DIMENSIONS or not all(type(extent) is int and extent >= 0 for extent in extents):
        return False
    return math.prod(max(extent, 1) for extent in extents if isinstance(extent, int)) < 2**59  # strides must fit, too


def order_tensors(tensors: Sequence[tuple[int, str]]) -> list[int]:
    """Indices of (element size, key) pairs in file order."""
    return sorted(range(len(tensors)), key=lambda i: (-tensors[i][0], tensors[i][1]))


def render_header(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]], *, metadata: Mapping[str, str]
) -> tuple[bytes, list[int]]:
    """Header bytes for tensors in file order, and each one's offset from the start of the data."""
    document: dict[str, object] = {RESERVED_KEY: dict(metadata)}
    offsets: list[int] = []
    position = 0
    for key, dtype, shape in tensors:
        end = position + count_bytes(dtype, shape)
        document[key] = {"dtype": dtype, "shape": shape, "data_offsets": (position, end)}
        offsets.append(position)
        position = end
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    if len(text) + PAGE > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the names of {len(tensors)} tensors take {len(text)} bytes, over the {MAX_HEADER_BYTES} that readers take"
        )
    text = text.ljust(round_up(LENGTH_BYTES + len(text), PAGE) - LENGTH_BYTES, b" ")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, offsets


def header_bytes(prefix: bytes, *, member: str, member_bytes: int) -> int:
    """Length of the whole header, from the first eight bytes of a member."""
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if len(prefix) < LENGTH_BYTES or length > min(MAX_HEADER_BYTES, member_bytes - LENGTH_BYTES):
        raise DamagedArchive(f"member {member!r} claims a header of {length} bytes in {member_bytes}")
    return LENGTH_BYTES + length


def parse_header(header: bytes, *, member: str, member_bytes: int) -> dict[str, TensorEntry]:
    """Tensors of a member by key. Together they must cover its data exactly once."""
    document = parse_json(header[LENGTH_BYTES:], what=f"the header of {member!r}")
    if not isinstance(document, dict):
        raise DamagedArchive(f"the header of {member!r} is not a JSON object")
    document.pop(RESERVED_KEY, None)
    entries: dict[str, TensorEntry] = {}
    spans: list[tuple[int, int]] = []
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}  # of the shapes so far: many tensors have the same one
    data = len(header)
    for key, fields in document.items():
        try:
            dtype, (start, end) = fields["dtype"], fields["data_offsets"]
            shape = tuple(fields["shape"])
            if not _NUMBERS.issuperset(map(type, (start, end, *shape))):
                raise ValueError("its offsets and its shape are not whole numbers")
            size = sizes.get((dtype, shape))
            if size is None and is_shape(shape):
                size = sizes[dtype, shape] = STORED_ITEMSIZE[dtype] * math.prod(shape)
            if start < 0 or end - start != size:
                raise ValueError("its size and its shape disagree")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedArchive(f"tensor {key[:200]!r} in {member!r} is described wrongly: {error!r:.200}") from error
        entries[key] = TensorEntry(key, dtype, shape, data + start, end - start)
        spans.append((start, end))
    spans.sort()
    position = 0
    for start, end in spans:
        if start != position:
            raise DamagedArchive(f"tensors in {member!r} overlap or leave a hole at data offset {position}")
        position = end
    if len(header) + position != member_bytes:
        raise DamagedArchive(f"tensors in {member!r} end at {len(header) + position} of {member_bytes} bytes")
    return entries
