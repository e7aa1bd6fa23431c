"""Claims: what the log of a place says, and that nothing hostile is taken for a part of it."""

from __future__ import annotations

import json

import pytest

from chockstone.checkpoints.errors import DamagedArchive, UnsupportedArchive
from chockstone.checkpoints.resume.attempts.claims import (
    Claim,
    ClaimLog,
    Generation,
    NewestCommit,
    _encode,
    claim_record,
    newest_commit_record,
)

CLAIM = Claim("claim", "s3://b/a", 3, "nonce", {"chain": "run"}, ("s3://b/older",), had_flyte_native=True)


def test_a_claim_comes_back_as_it_was() -> None:
    assert Claim.decode(CLAIM.encode(), what="it") == CLAIM


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "king"},
        {"by": 3},
        {"attempt": True},
        {"attempt": "3"},
        {"identity": {"chain": 7}},
        {"identity": None},
        {"given": "s3://b"},
        {"given": [7]},
        {"given": ["x"] * 1001},
        {"foreign": None},
        {"nonce": None},
        {"format": "1"},
    ],
)
def test_what_is_no_claim_is_damage(change: dict[str, object]) -> None:
    values = {**json.loads(CLAIM.encode()), **change}
    del values["digest"]  # a right one is made for what was changed

    with pytest.raises(DamagedArchive):
        Claim.decode(_encode(values), what="it")


@pytest.mark.parametrize("record", [CLAIM, NewestCommit(Generation(12, 3))])
def test_a_bit_that_differs_anywhere_is_noticed(record: Claim | NewestCommit) -> None:
    content = record.encode()
    for index in range(len(content) - 1):  # the last one is a newline, and any other space is as good
        for bit in (1, 2, 16, 32):
            changed = bytearray(content)
            changed[index] ^= bit
            try:
                assert type(record).decode(bytes(changed), what="it") == record, "white space"
            except (DamagedArchive, UnsupportedArchive):
                continue


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b"[" * 100_000])
def test_what_is_no_json_is_damage(content: bytes) -> None:
    with pytest.raises(DamagedArchive):
        Claim.decode(content, what="it")


def test_a_newer_format_is_said_so() -> None:
    with pytest.raises(UnsupportedArchive, match="upgrade"):
        NewestCommit.decode(b'{"format": 2}', what="it")


def test_a_generation_is_its_name() -> None:
    assert Generation.parse(Generation(12, 3).name) == (12, 3)
    assert Generation.parse("000012-0003.tar") is None
    assert Generation.parse("latest") is None


@pytest.mark.parametrize(
    ("newest", "generation", "is_covered"),
    [
        (None, (1, 1), False),
        ((2, 1), (1, 1), True),
        ((2, 1), (2, 1), True),
        ((2, 2), (2, 1), False),  # the same number by another incarnation: it came too late
        ((2, 1), (3, 1), False),
    ],
)
def test_what_was_seen_is_covered(
    newest: tuple[int, int] | None, generation: tuple[int, int], is_covered: bool
) -> None:
    seen = NewestCommit(Generation(*newest) if newest else None)

    assert NewestCommit.decode(seen.encode(), what="it").covers(Generation(*generation)) is is_covered


def test_the_log_is_read_off_the_names() -> None:
    records = [
        claim_record(1),
        newest_commit_record(1, "claim"),
        claim_record(2),
        "claims/x.json",
        "trials/1.json",
        "resume.json",
    ]

    log = ClaimLog.of(records)

    assert (log.claims, log.last, log.is_fenced) == ((1, 2), 2, False)
    assert ClaimLog.of([*records, newest_commit_record(2, "fence")]).is_fenced
