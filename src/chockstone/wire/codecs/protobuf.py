"""Parses untrusted protobuf: a message or BadRequest, with memory proportional to the body.

An empty submessage takes two bytes on the wire and sixty in memory, so the fields of a large body are counted before
it is parsed. Requests of the SDK are never near the limits.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from chockstone.wire.failures import BadRequest

COUNTED_BYTES: Final = 8 << 20  # smaller bodies are not counted
MAX_FIELDS: Final = 200_000
MAX_SHAPE_BYTES: Final = 640

# Submessages to count in: per message, field number -> the message in it.
_REQUEST, _DATUM, _INPUT, _TENSOR = range(4)
_INSIDE: Final[tuple[dict[int, int], ...]] = ({3: _DATUM}, {2: _INPUT}, {2: _TENSOR}, {})
_SHAPE: Final = 4

_Parsed = TypeVar("_Parsed", bound=Message)


def parse(body: bytes, into: type[_Parsed]) -> _Parsed:
    """``body`` as a message. A ForwardBackwardRequest is counted first if it is large."""
    if len(body) > COUNTED_BYTES:
        _refuse_many_fields(body)
    message = into()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequest(
            f"the body of {len(body)} bytes is not a {into.DESCRIPTOR.name} message: {error}. "
            f"Check its content type and encoding."
        ) from error
    return message


def _refuse_many_fields(body: bytes) -> None:
    """Raise if there are too many fields in ``body``. Malformed bytes end the count quietly: parsing names them."""
    count = 0
    pending = [(0, len(body), _REQUEST)]
    while pending:
        position, end, kind = pending.pop()
        inside = _INSIDE[kind]
        while position < end:
            count += 1
            if count > MAX_FIELDS:
                raise BadRequest(
                    f"the body of {len(body)} bytes has more than {MAX_FIELDS} fields. Send fewer datums per request."
                )
            tag, position = _varint(body, position)
            match tag & 7:
                case 0:
                    _, position = _varint(body, position)
                case 1:
                    position += 8
                case 5:
                    position += 4
                case 2:
                    length, position = _varint(body, position)
                    number = tag >> 3
                    if number in inside:
                        pending.append((position, min(position + length, end), inside[number]))
                    elif kind == _TENSOR and number == _SHAPE and length > MAX_SHAPE_BYTES:
                        raise BadRequest(f"a tensor has a shape of {length} bytes. No tensor has so many dimensions.")
                    position += length
                case 3 | 4:
                    pass  # a group: its fields follow
                case _:
                    return


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """A varint and what comes after it; past the end of a malformed body, (0, its end)."""
    value = shift = 0
    while position < len(body) and shift < 70:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, len(body)
