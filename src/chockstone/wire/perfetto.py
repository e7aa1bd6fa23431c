"""Perfetto: a timeline as the protobuf trace that ui.perfetto.dev opens (``.pftrace``).

The few messages it takes are written by hand: Trace, TracePacket, TrackDescriptor, TrackEvent and
DebugAnnotation, with the field numbers of Perfetto's own protos. Names are never interned, so any
packet can be read by itself. Times are nanoseconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SEQUENCE_ID: Final = 1
_STATE_CLEARED: Final = 1
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type

Details = Mapping[str, str | int | float | None]


class PerfettoTrace:
    """Tracks first, then what happened on them. Slices on one track must lie inside or beside each other."""

    def __init__(self) -> None:
        self._packets: list[bytes] = []
        self._events: list[tuple[int, int, bytes]] = []
        self._tracks = 0

    def add_process(self, name: str) -> int:
        """A group of tracks; its id is a track's own."""
        process = _number(1, 1) + _text(6, name)
        return self._add_track(_message(3, process))

    def add_track(self, name: str, *, parent: int) -> int:
        return self._add_track(_text(2, name) + _number(5, parent))

    def add_counter(self, name: str, *, parent: int) -> int:
        return self._add_track(_text(2, name) + _number(5, parent) + _message(8, b""))

    def add_slice(self, track: int, name: str, start: datetime, end: datetime, details: Details | None = None) -> None:
        self._add(start, _number(9, _BEGIN) + _number(11, track) + _text(23, name) + _annotations(details))
        self._add(max(start, end), _number(9, _END) + _number(11, track), order=-1 if start < end else 1)

    def add_instant(self, track: int, name: str, at: datetime, details: Details | None = None) -> None:
        self._add(at, _number(9, _INSTANT) + _number(11, track) + _text(23, name) + _annotations(details))

    def add_count(self, track: int, at: datetime, value: float) -> None:
        self._add(at, _number(9, _COUNTER) + _number(11, track) + _double(44, value))

    def encode(self) -> bytes:
        events = (
            _message(1, _number(8, moment) + _number(10, _SEQUENCE_ID) + _message(11, event))
            for moment, _, event in sorted(self._events, key=lambda found: found[:2])
        )
        return b"".join((*self._packets, *events))

    def _add_track(self, descriptor: bytes) -> int:
        self._tracks += 1
        flags = b"" if self._packets else _number(13, _STATE_CLEARED)
        described = _message(60, _number(1, self._tracks) + descriptor)
        self._packets.append(_message(1, _number(10, _SEQUENCE_ID) + flags + described))
        return self._tracks

    def _add(self, at: datetime, event: bytes, *, order: int = 0) -> None:
        """Of events at one moment, what ends comes before what begins, unless it begins then itself."""
        self._events.append(((at - _EPOCH) // _MICROSECOND * 1000, order, event))


def _annotations(details: Details | None) -> bytes:
    return b"".join(_message(4, _annotation(name, value)) for name, value in (details or {}).items())


def _annotation(name: str, value: str | int | float | None) -> bytes:
    match value:
        case int() if -(2**63) <= value < 2**63:
            encoded = _number(4, value)
        case float():
            encoded = _double(5, value)
        case _:
            encoded = _text(6, str(value))
    return _text(10, name) + encoded


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode(errors="replace"))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
