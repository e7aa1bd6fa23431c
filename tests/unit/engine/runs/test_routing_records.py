from __future__ import annotations

import numpy as np

from chockstone.engine.runs.routing_records import RoutingRecords
from chockstone.wire.codecs.routing import digest_tokens, encode_routing, split_records

TOKENS = np.arange(5, dtype=np.int32)
RECORD = encode_routing(np.ones((5, 2, 2), np.uint16))


def test_a_record_is_found_by_the_tokens_with_or_without_the_last_sampled_one() -> None:
    records = RoutingRecords()
    records.add("ann", "tiny", {digest_tokens(TOKENS): RECORD})

    found = split_records(records.find("ann", "tiny:peft:32", [TOKENS, TOKENS[1:], np.append(TOKENS, np.int32(9))]))

    assert [each is not None for each in found] == [True, False, True]
    assert records.find("ann", "tiny", [TOKENS[::-1]]) == b""


def test_a_record_is_neither_found_for_other_users_nor_for_other_models() -> None:
    records = RoutingRecords()
    records.add("ann", "tiny", {digest_tokens(TOKENS): RECORD})

    assert records.find("bob", "tiny", [TOKENS]) == b"" and not records.has_any("bob")
    assert records.find("ann", "large", [TOKENS]) == b""


def test_the_newest_record_of_the_same_tokens_counts() -> None:
    records, newer = RoutingRecords(), encode_routing(np.zeros((5, 2, 2), np.uint16))
    for record in (RECORD, newer):
        records.add("ann", "tiny", {digest_tokens(TOKENS): record})

    (found,) = split_records(records.find("ann", "tiny", [TOKENS]))

    assert found is not None and not found.any() and records.size_bytes < 2 * len(RECORD) + 400


def test_memory_is_bounded_and_the_user_who_has_most_makes_room() -> None:
    records = RoutingRecords(kept_bytes=2000)
    records.add("bob", "tiny", {digest_tokens(TOKENS): RECORD})
    sequences = [np.arange(number, number + 5, dtype=np.int32) for number in range(100)]

    for tokens in sequences:
        records.add("ann", "tiny", {digest_tokens(tokens): RECORD})

    assert records.size_bytes <= 2000
    assert records.find("bob", "tiny", [TOKENS]) and records.find("ann", "tiny", [sequences[-1]])
    assert not records.find("ann", "tiny", [sequences[0]])


def test_nothing_is_kept_without_memory_for_it() -> None:
    records = RoutingRecords(kept_bytes=0)

    records.add("ann", "tiny", {digest_tokens(TOKENS): RECORD})

    assert records.size_bytes == 0 and not records.has_any("ann")
