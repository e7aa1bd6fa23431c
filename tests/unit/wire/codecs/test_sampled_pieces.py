"""Sampled pieces as bytes."""

from __future__ import annotations

import orjson

from chockstone.wire.codecs.sampled_pieces import SampledPiece, decode_pieces, encode_pieces

PIECES = [
    SampledPiece(0, (5, 2**31 - 1), (-0.5, -0.25)),
    SampledPiece(3, (), (), "length", start=7),
    SampledPiece(1, (0,), (-1e-3,), "stop", start=2),
]


def test_pieces_are_decoded_as_they_were_encoded_but_for_the_precision_of_logprobs() -> None:
    values, body = encode_pieces(PIECES)
    found = decode_pieces(orjson.loads(orjson.dumps(values)), body)

    assert found[:2] == PIECES[:2]
    assert found[2].tokens == (0,) and abs(found[2].logprobs[0] + 1e-3) < 1e-9


def test_numbers_travel_as_bytes_four_of_each_token_and_logprob() -> None:
    _, body = encode_pieces(PIECES)

    assert len(body) == 3 * (4 + 4)
    assert body[:4] == b"\x05\x00\x00\x00"


def test_no_pieces_are_no_bytes() -> None:
    values, body = encode_pieces([])

    assert (decode_pieces(values, body), body) == ([], b"")
