"""Reads a Perfetto trace with Perfetto's own messages, as strictly as its trace processor: what it would report as an
error in a trace fails here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.protobuf import message_factory
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Details = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    track: int
    name: str
    started_ns: int
    ended_ns: int
    depth: int
    details: Details

    @property
    def length(self) -> timedelta:
        return timedelta(microseconds=(self.ended_ns - self.started_ns) / 1000)


@dataclass(frozen=True)
class Instant:
    track: int
    name: str
    at_ns: int
    details: Details


@dataclass
class ReadTrace:
    tracks: dict[int, str] = field(default_factory=dict)  # names
    parents: dict[int, int] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    counts: list[tuple[int, int, float]] = field(default_factory=list)

    def names_by_track(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for each in sorted(self.slices, key=lambda each: (each.started_ns, each.depth)):
            found[self.tracks[each.track]].append(each.name)
        return dict(found)

    def instants_of(self, track: str) -> list[str]:
        return [each.name for each in self.instants if self.tracks[each.track] == track]

    def parent_of(self, track: str) -> str:
        [uuid] = [uuid for uuid, name in self.tracks.items() if name == track]
        return self.tracks[self.parents[uuid]]


def read_trace(content: bytes) -> ReadTrace:
    """Fails unless packets are in the order of time, slices nest, all tracks are described first, and every byte is a
    field that Perfetto knows."""
    trace = _read_messages(content)
    assert trace.SerializeToString(deterministic=True) == _known(trace).SerializeToString(deterministic=True)
    read, latest = ReadTrace(), 0
    open_slices: dict[int, list[tuple[str, int, Details]]] = defaultdict(list)
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id
        if not number:
            assert packet.sequence_flags == 1  # the state of the sequence begins here
        if packet.HasField("track_descriptor"):
            _describe(read, packet.track_descriptor)
            continue
        assert packet.timestamp >= latest > -1
        latest = packet.timestamp
        event = packet.track_event
        assert event.track_uuid in read.tracks
        details = {each.name: _value(each) for each in event.debug_annotations}
        stack = open_slices[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((event.name, packet.timestamp, details))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            name, started, about = stack.pop()  # fails for an end without a beginning
            read.slices.append(Slice(event.track_uuid, name, started, packet.timestamp, len(stack), about))
        elif event.type == pb.TrackEvent.TYPE_INSTANT:
            read.instants.append(Instant(event.track_uuid, event.name, packet.timestamp, details))
        else:
            assert event.type == pb.TrackEvent.TYPE_COUNTER
            read.counts.append((event.track_uuid, packet.timestamp, event.double_counter_value))
    assert not any(open_slices.values()), "a slice does not end"
    return read


def _read_messages(content: bytes) -> Any:
    kind = message_factory.GetMessageClass(pb.DESCRIPTOR.message_types_by_name["Trace"])
    return kind.FromString(content)


def _describe(read: ReadTrace, descriptor: Any) -> None:
    assert descriptor.uuid and descriptor.uuid not in read.tracks
    if descriptor.parent_uuid:
        assert descriptor.parent_uuid in read.tracks
        read.parents[descriptor.uuid] = descriptor.parent_uuid
    read.tracks[descriptor.uuid] = descriptor.name or descriptor.process.process_name


def _known(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    return copy


def _value(annotation: Any) -> Any:
    return getattr(annotation, annotation.WhichOneof("value"))
