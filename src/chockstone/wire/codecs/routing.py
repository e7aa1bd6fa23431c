"""Routing: which experts a mixture of experts chose for each token, recorded in sampling and replayed in training.

A *record* is the routing of one sequence: a short head, then the experts, one or two bytes each. Records are found by
a digest of the tokens that the model had read.

Shapes: T tokens, L layers with experts, K experts of each token.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from chockstone.wire.failures import BadRequest

Routing = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]  # [T, L, K]
_HEAD: Final = struct.Struct("<IHHB")  # T, L, K, bytes of a number
_SIZE: Final = struct.Struct("<I")


def digest_tokens(tokens: npt.NDArray[np.int32]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(tokens, "<i4").tobytes(), digest_size=16).hexdigest()


def encode_routing(routing: Routing) -> bytes:
    kind = "<u1" if not routing.size or int(routing.max()) < 1 << 8 else "<u2"
    numbers = np.ascontiguousarray(routing, kind)
    return _HEAD.pack(*routing.shape, numbers.itemsize) + numbers.tobytes()


def decode_routing(record: bytes) -> Routing:
    """Raises BadRequest for bytes that are no record."""
    try:
        tokens, layers, experts, itemsize = _HEAD.unpack_from(record)
        kind: npt.DTypeLike = {1: "<u1", 2: "<u2"}[itemsize]
        numbers: Routing = np.frombuffer(record, kind, offset=_HEAD.size).reshape(tokens, layers, experts)
    except (struct.error, KeyError, ValueError) as error:
        raise BadRequest(f"{len(record)} bytes are no record of routing") from error
    return numbers


def join_records(records: Iterable[bytes]) -> bytes:
    """The records of the datums of one pass, in order; empty for a datum without one."""
    return b"".join(_SIZE.pack(len(record)) + record for record in records)


def split_records(joined: bytes) -> Sequence[Routing | None]:
    """What ``join_records`` joined. Raises BadRequest for other bytes."""
    found: list[Routing | None] = []
    position = 0
    while position < len(joined):
        if position + _SIZE.size > len(joined):
            raise BadRequest("the routing of a pass is damaged")
        (size,) = _SIZE.unpack_from(joined, position)
        position += _SIZE.size
        found.append(decode_routing(joined[position : position + size]) if size else None)
        position += size
    return found
