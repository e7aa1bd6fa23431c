from __future__ import annotations

import numpy as np
import pytest

from chockstone.wire.codecs.routing import decode_routing, digest_tokens, encode_routing, join_records, split_records
from chockstone.wire.failures import BadRequest


@pytest.mark.parametrize(("experts", "itemsize"), [(256, 1), (257, 2)])
def test_a_record_takes_one_byte_for_each_choice_while_that_is_enough(experts: int, itemsize: int) -> None:
    routing = np.arange(5 * 3 * 2, dtype=np.uint16).reshape(5, 3, 2)
    routing[-1, -1, -1] = experts - 1

    record = encode_routing(routing)

    np.testing.assert_array_equal(decode_routing(record), routing)
    assert len(record) == 9 + routing.size * itemsize


def test_the_records_of_a_pass_keep_their_places() -> None:
    first, last = np.ones((2, 3, 2), np.uint16), np.zeros((0, 3, 2), np.uint16)

    found = split_records(join_records([encode_routing(first), b"", encode_routing(last)]))

    assert found[1] is None and found[0] is not None and found[2] is not None
    np.testing.assert_array_equal(found[0], first)
    assert found[2].shape == (0, 3, 2) and split_records(b"") == []


@pytest.mark.parametrize("damage", [b"\x01", b"\x04\x00\x00\x00abcd", b"\x09\x00\x00\x00" + b"\x01" * 9])
def test_other_bytes_are_refused(damage: bytes) -> None:
    with pytest.raises(BadRequest, match="routing"):
        split_records(damage)


def test_a_digest_is_that_of_the_numbers() -> None:
    tokens = np.array([5, 6, 7], np.int32)

    assert digest_tokens(tokens) == digest_tokens(np.array([5, 0, 6, 0, 7], np.int32)[::2])
    assert len({digest_tokens(tokens), digest_tokens(tokens[:-1]), digest_tokens(tokens[::-1])}) == 3
