"""Perfetto: builds a timeline as the protobuf trace that ui.perfetto.dev opens (``.pftrace``).

Names are never interned, so each packet can be read by itself. Times are nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from chockstone.wire.codecs import perfetto_pb2 as pb

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SEQUENCE_ID: Final = 1

Details = Mapping[str, str | int | float | None]


class PerfettoTrace:
    """Add tracks first, then their events. Slices on one track must nest or follow each other."""

    def __init__(self) -> None:
        self._tracks: list[pb.TracePacket] = []
        self._events: list[tuple[int, int, pb.TrackEvent]] = []  # nanoseconds, order among equals, event

    def add_process(self, name: str) -> int:
        """A group of tracks. Its id is a parent for ``add_track``."""
        return self._add_track(pb.TrackDescriptor(process=pb.ProcessDescriptor(pid=1, process_name=_text(name))))

    def add_track(self, name: str, *, parent: int) -> int:
        return self._add_track(pb.TrackDescriptor(name=_text(name), parent_uuid=parent))

    def add_counter(self, name: str, *, parent: int) -> int:
        counter = pb.CounterDescriptor()
        return self._add_track(pb.TrackDescriptor(name=_text(name), parent_uuid=parent, counter=counter))

    def add_slice(self, track: int, name: str, start: datetime, end: datetime, details: Details | None = None) -> None:
        begin = pb.TrackEvent(type=pb.TrackEvent.TYPE_SLICE_BEGIN, track_uuid=track, name=_text(name))
        self._add(start, _with_details(begin, details))
        finish = pb.TrackEvent(type=pb.TrackEvent.TYPE_SLICE_END, track_uuid=track)
        self._add(max(start, end), finish, order=-1 if start < end else 1)

    def add_instant(self, track: int, name: str, at: datetime, details: Details | None = None) -> None:
        instant = pb.TrackEvent(type=pb.TrackEvent.TYPE_INSTANT, track_uuid=track, name=_text(name))
        self._add(at, _with_details(instant, details))

    def add_count(self, track: int, at: datetime, value: float) -> None:
        self._add(
            at, pb.TrackEvent(type=pb.TrackEvent.TYPE_COUNTER, track_uuid=track, double_counter_value=float(value))
        )

    def encode(self) -> bytes:
        events = [
            pb.TracePacket(timestamp=nanoseconds, trusted_packet_sequence_id=_SEQUENCE_ID, track_event=event)
            for nanoseconds, _, event in sorted(self._events, key=lambda added: added[:2])
        ]
        return pb.TraceFile(packet=[*self._tracks, *events]).SerializeToString(deterministic=True)

    def _add_track(self, descriptor: pb.TrackDescriptor) -> int:
        packet = pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE_ID, track_descriptor=descriptor)
        if not self._tracks:
            packet.sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._tracks.append(packet)
        packet.track_descriptor.uuid = len(self._tracks)
        return len(self._tracks)

    def _add(self, at: datetime, event: pb.TrackEvent, *, order: int = 0) -> None:
        """Of events at one moment, an end comes before a begin, unless both are of the same slice."""
        self._events.append(((at - _EPOCH) // _MICROSECOND * 1000, order, event))


def _with_details(event: pb.TrackEvent, details: Details | None) -> pb.TrackEvent:
    event.debug_annotations.extend(_annotation(name, value) for name, value in (details or {}).items())
    return event


def _annotation(name: str, value: str | int | float | None) -> pb.DebugAnnotation:
    match value:
        case int() if -(2**63) <= value < 2**63:
            return pb.DebugAnnotation(name=_text(name), int_value=int(value))  # a bool is 0 or 1
        case float():
            return pb.DebugAnnotation(name=_text(name), double_value=value)
        case _:
            return pb.DebugAnnotation(name=_text(name), string_value=_text(str(value)))


def _text(text: str) -> str:
    """Protobuf strings are UTF-8, which has no half of a surrogate pair."""
    return text.encode(errors="replace").decode()
