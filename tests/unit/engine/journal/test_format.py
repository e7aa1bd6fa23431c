from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chockstone.engine.journal import format as fmt

NUMBERS = st.integers(0, (1 << 64) - 2)


@given(first=NUMBERS, previous=st.none() | NUMBERS, mark=NUMBERS)
def test_a_segment_header_says_what_it_was_given(first: int, previous: int | None, mark: int) -> None:
    packed = fmt.pack_segment(first, previous, mark)

    assert len(packed) == fmt.SEGMENT_BYTES
    assert fmt.unpack_segment(packed) == fmt.SegmentHeader(fmt.VERSION, first, previous, mark)


@given(mark=NUMBERS, sequence=NUMBERS, head=st.binary(), body=st.binary(), is_held=st.booleans())
def test_a_record_header_says_what_it_was_given(
    mark: int, sequence: int, head: bytes, body: bytes, is_held: bool
) -> None:
    packed = fmt.pack_record(mark, sequence, head, body, is_held=is_held)

    assert len(packed) == fmt.RECORD_BYTES
    assert packed.startswith(fmt.mark_bytes(mark))
    header = fmt.unpack_record(packed)
    assert header == fmt.RecordHeader(mark, sequence, len(head), len(body), fmt.digest(head), fmt.digest(body), is_held)
    assert header.record_bytes == len(packed) + len(head) + len(body)


@given(bit=st.integers(0, fmt.RECORD_BYTES * 8 - 1), sequence=NUMBERS, body=st.binary())
def test_a_record_header_with_a_flipped_bit_is_none(bit: int, sequence: int, body: bytes) -> None:
    packed = bytearray(fmt.pack_record(7, sequence, b"{}", body, is_held=True))
    packed[bit // 8] ^= 1 << bit % 8

    assert fmt.unpack_record(bytes(packed)) is None


@given(bit=st.integers(0, fmt.SEGMENT_BYTES * 8 - 1), first=NUMBERS)
def test_a_segment_header_with_a_flipped_bit_is_none(bit: int, first: int) -> None:
    packed = bytearray(fmt.pack_segment(first, None, 7))
    packed[bit // 8] ^= 1 << bit % 8

    assert fmt.unpack_segment(bytes(packed)) is None


def test_the_bytes_are_those_of_the_document() -> None:
    """A journal outlives the server that wrote it: these may change with the version only."""
    segment = fmt.pack_segment(5, 2, 0x0123456789ABCDEF)
    record = fmt.pack_record(0x0123456789ABCDEF, 5, b'{"kind":"x"}', b"body", is_held=True)

    assert segment.hex(" ", 8) == (
        "8943484b4a4e4c0a 0100000000000000 0500000000000000 0200000000000000 efcdab8967452301 32c10317347ee2df"
    )
    assert record.hex(" ", 8) == (
        "efcdab8967452301 0c00000001000000 0400000000000000 0500000000000000 "
        "1e18044db0db75bb fae17f18eec8f284 0b8a590c1a7add27"
    )
    assert fmt.pack_segment(0, None, 1)[24:32] == b"\xff" * 8


@pytest.mark.parametrize("name", ["1.journal", "0000000000000001.journa", "x0000000000000001.journal", "lock"])
def test_other_names_are_not_segments(name: str) -> None:
    assert fmt.first_of_name(Path(name)) is None


@given(first=NUMBERS)
def test_a_segment_is_named_for_its_first_record(first: int) -> None:
    assert fmt.first_of_name(Path(fmt.segment_name(first))) == first
