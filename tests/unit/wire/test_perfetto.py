"""The trace is read back by protobuf, from descriptors with Perfetto's own names and numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from chockstone.wire.perfetto import PerfettoTrace

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
NANOSECONDS = int(NOON.timestamp()) * 10**9
MINUTE = timedelta(minutes=1)

UINT64, UINT32, INT32, INT64, DOUBLE, TEXT = 4, 13, 5, 3, 1, 9
MESSAGES: dict[str, list[tuple[str, int, int | str]]] = {
    "Trace": [("packet", 1, "TracePacket*")],
    "TracePacket": [
        ("timestamp", 8, UINT64),
        ("trusted_packet_sequence_id", 10, UINT32),
        ("track_event", 11, "TrackEvent"),
        ("sequence_flags", 13, UINT32),
        ("track_descriptor", 60, "TrackDescriptor"),
    ],
    "TrackDescriptor": [
        ("uuid", 1, UINT64),
        ("name", 2, TEXT),
        ("process", 3, "ProcessDescriptor"),
        ("parent_uuid", 5, UINT64),
        ("counter", 8, "CounterDescriptor"),
    ],
    "ProcessDescriptor": [("pid", 1, INT32), ("process_name", 6, TEXT)],
    "CounterDescriptor": [],
    "TrackEvent": [
        ("debug_annotations", 4, "DebugAnnotation*"),
        ("type", 9, INT32),
        ("track_uuid", 11, UINT64),
        ("name", 23, TEXT),
        ("double_counter_value", 44, DOUBLE),
    ],
    "DebugAnnotation": [
        ("int_value", 4, INT64),
        ("double_value", 5, DOUBLE),
        ("string_value", 6, TEXT),
        ("name", 10, TEXT),
    ],
}


@pytest.fixture(scope="module")
def read() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="perfetto.proto", package="perfetto", syntax="proto2")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            label = 3 if str(kind).endswith("*") else 1
            field = described.field.add(name=name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = 11, f".perfetto.{kind.removesuffix('*')}"
            else:
                field.type = kind  # type: ignore[assignment]  # the numbers of the enum are what is meant
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.Trace")).FromString


def unknown(message: Any) -> int:
    """How many fields nobody knows."""
    inner = sum(
        unknown(each)
        for field, value in message.ListFields()
        if field.message_type is not None
        for each in (value if field.is_repeated else [value])
    )
    return inner + message.ByteSize() - type(message)(**{f.name: v for f, v in message.ListFields()}).ByteSize()


def test_a_timeline_is_read_back(read: Any) -> None:
    trace = PerfettoTrace()
    process = trace.add_process("session s")
    track = trace.add_track("run s:train:0", parent=process)
    tokens = trace.add_counter("tokens", parent=process)
    trace.add_count(tokens, NOON + MINUTE, 2.5)
    trace.add_slice(track, "é", NOON, NOON + 2 * MINUTE, {"rank": 8, "loss": 0.5, "path": "tinker://x", "none": None})
    trace.add_instant(track, "saved", NOON + MINUTE, {"big": 2**70, "small": -1})

    packets = read(trace.encode()).packet

    assert unknown(read(trace.encode())) == 0
    descriptors = [packet.track_descriptor for packet in packets[:3]]
    assert [(each.uuid, each.parent_uuid) for each in descriptors] == [(1, 0), (2, 1), (3, 1)]
    assert descriptors[0].process.process_name == "session s"
    assert descriptors[1].name == "run s:train:0"
    assert descriptors[2].HasField("counter")
    assert packets[0].sequence_flags == 1
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    events = [(packet.timestamp - NANOSECONDS, packet.track_event) for packet in packets[3:]]
    assert [(moment // 10**9, event.type, event.track_uuid, event.name) for moment, event in events] == [
        (0, 1, track, "é"),
        (60, 4, tokens, ""),
        (60, 3, track, "saved"),
        (120, 2, track, ""),
    ]
    assert events[1][1].double_counter_value == 2.5
    rank, loss, path, none = events[0][1].debug_annotations
    assert (rank.name, rank.int_value, loss.double_value, path.string_value) == ("rank", 8, 0.5, "tinker://x")
    assert none.string_value == "None"
    big, small = events[2][1].debug_annotations
    assert (big.string_value, small.int_value) == (str(2**70), -1)


def test_what_ends_makes_room_for_what_begins(read: Any) -> None:
    trace = PerfettoTrace()
    track = trace.add_process("p")
    trace.add_slice(track, "second", NOON + MINUTE, NOON + 2 * MINUTE)
    trace.add_slice(track, "first", NOON, NOON + MINUTE)
    trace.add_slice(track, "moment", NOON + 3 * MINUTE, NOON)  # clocks may go back

    events = [packet.track_event for packet in read(trace.encode()).packet[1:]]

    assert [(event.type, event.name) for event in events] == [
        (1, "first"), (2, ""), (1, "second"), (2, ""), (1, "moment"), (2, ""),
    ]  # fmt: skip
