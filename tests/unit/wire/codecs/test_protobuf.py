"""Parsing protobuf from clients: counted before it is parsed, refused in words."""

from __future__ import annotations

import pytest

from chockstone.wire.codecs import protobuf as parsing
from chockstone.wire.codecs.pass_request import decode_pass, peek_pass
from chockstone.wire.failures import BadRequest
from support.wire.passes import body_of, datum, sdk_body


def test_bytes_that_are_no_message_are_refused() -> None:
    for read in (peek_pass, decode_pass):
        with pytest.raises(BadRequest, match="the body of 3 bytes is not a ForwardBackwardRequest message"):
            read(b"\xff\xff\xff")


@pytest.mark.parametrize("piece", [b"\x1a\x00", b"\x1a\x02\x0a\x00", b"\x1a\x02\x1a\x00", b"\x2a\x00", b"\x08\x01"])
def test_a_swarm_of_small_messages_is_counted_before_it_is_parsed(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "COUNTED_BYTES", 1000)
    monkeypatch.setattr(parsing, "MAX_FIELDS", 5000)

    with pytest.raises(BadRequest, match="has more than 5000 fields"):
        peek_pass(piece * 5001)


def test_a_shape_of_a_million_dimensions_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "COUNTED_BYTES", 1000)

    with pytest.raises(BadRequest, match="a tensor has a shape of 1000000 bytes"):
        peek_pass(body_of(dtype=1, dense=b"", shape=[1] * 1_000_000))


def test_counting_lets_real_requests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "COUNTED_BYTES", 0)
    body = sdk_body(*[datum([1, 2], target_tokens=[2, 3], weights=[1.0, 1.0])] * 50, options={"beta": 1.0})

    assert peek_pass(body).datum_count == 50
