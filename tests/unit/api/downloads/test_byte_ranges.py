"""Ranges of a representation, as RFC 9110 has them."""

from __future__ import annotations

import pytest

from chockstone.api.downloads.byte_ranges import ByteRange, RangeUnsatisfiable, asked_range, is_known, parse_range

ETAG = '"abc"'


@pytest.mark.parametrize(
    ("text", "start", "size"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=10-19", 10, 10),
        ("bytes=10-", 10, 90),
        ("bytes=10-1000", 10, 90),
        ("bytes=99-", 99, 1),
        ("bytes=-1", 99, 1),
        ("bytes=-100", 0, 100),
        ("bytes=-1000", 0, 100),
        ("Bytes=0-1", 0, 2),
        ("bytes= 0-1 ", 0, 2),
        ("bytes=007-008", 7, 2),
        ("bytes=0-99999999999999999999999", 0, 100),
    ],
)
def test_one_range_is_understood(text: str, start: int, size: int) -> None:
    assert parse_range(text, whole_bytes=100) == ByteRange(start, size)


@pytest.mark.parametrize(
    "text",
    [
        *("", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=1", "bytes=1-a", "bytes=--1", "bytes=+1-2", "0-1"),
        *("bytes=5-4", "items=0-1", "bytes=0-1,3-4", "bytes=0-1,", "bytes 0-1", "bytes=٣-٤", "bytes=1 - 2"),
        "bytes=" + "9" * 10_000 + "-",
    ],
)
def test_what_is_no_single_range_gets_the_whole(text: str) -> None:
    assert parse_range(text, whole_bytes=100) is None


@pytest.mark.parametrize("text", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999999-"])
def test_a_range_behind_the_end_is_refused(text: str) -> None:
    with pytest.raises(RangeUnsatisfiable):
        parse_range(text, whole_bytes=100)


@pytest.mark.parametrize("text", ["bytes=0-", "bytes=-1", "bytes=0-0"])
def test_of_nothing_there_is_no_range(text: str) -> None:
    with pytest.raises(RangeUnsatisfiable):
        parse_range(text, whole_bytes=0)


@pytest.mark.parametrize("validator", ['"other"', f"W/{ETAG}", "Sun, 01 Mar 2026 12:00:00 GMT", ""])
def test_a_range_of_another_version_gets_the_whole(validator: str) -> None:
    headers = {"range": "bytes=5-9", "if-range": validator}

    assert asked_range(headers, etag=ETAG, whole_bytes=100) is None


def test_a_range_of_this_version_is_taken() -> None:
    headers = {"range": "bytes=5-9", "if-range": ETAG}

    assert asked_range(headers, etag=ETAG, whole_bytes=100) == ByteRange(5, 5)
    assert asked_range({"if-range": ETAG}, etag=ETAG, whole_bytes=100) is None


def test_a_range_says_what_it_is_of() -> None:
    assert ByteRange(5, 5).content_range(100) == "bytes 5-9/100"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (ETAG, True),
        ("*", True),
        (f'"x", {ETAG}', True),
        (f"W/{ETAG}", True),  # the comparison is a weak one
        ('"x"', False),
        ("abc", False),
        ("", False),
    ],
)
def test_what_a_client_has_already(known: str, expected: bool) -> None:
    assert is_known({"if-none-match": known}, etag=ETAG) is expected


def test_a_client_that_says_nothing_has_nothing() -> None:
    assert not is_known({}, etag=ETAG)
