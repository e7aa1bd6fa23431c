from __future__ import annotations

import io
import itertools
import tarfile

import pytest

from chockstone.checkpoints.format.tar import (
    BLOCK,
    MAX_NAME_BYTES,
    PAGE,
    USTAR_MAX_SIZE,
    check_member_name,
    describe_header,
    payload_offset,
    render_headers,
    round_up,
)

MTIME = 1_772_366_400
LENGTHS = (1, 2, 50, 99, 100, 101, 102, 150, 255, 470, 480, 490, 500, 512, 900, 990, 1000, 1010, MAX_NAME_BYTES)
SIZES = (0, 1, 511, 512, 4096, USTAR_MAX_SIZE - 1, USTAR_MAX_SIZE, 10**12, 2**60)


def name_of(length: int) -> str:
    """A sound member name of that length."""
    return "/".join(["d" * 99] * 11)[: length - 1].replace("/d", "/x") + "f"


@pytest.mark.parametrize(
    "name", ["a", "a.b", "a/b/c", "...", "a..b", "-x", ".hidden", "_", "A" * 255, "x/" * 511 + "x"]
)
def test_plain_relative_names_are_accepted(name: str) -> None:
    assert check_member_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/",
        "/a",
        "a/",
        "a//b",
        "./a",
        "a/..",
        "../a",
        "a/./b",
        "a\\b",
        "a:b",
        "a b",
        "a\n",
        "\n",
        "a\0",
        "é",
    ],
)
def test_names_that_could_leave_a_directory_or_surprise_a_shell_are_refused(name: str) -> None:
    assert check_member_name(name)


def test_names_that_are_too_long_are_refused() -> None:
    assert check_member_name("a" * 256)
    assert check_member_name("a/" * 512 + "a")


def test_every_payload_starts_on_a_page_whatever_stands_before_it() -> None:
    for offset, length, size in itertools.product(range(0, 2 * PAGE, BLOCK), LENGTHS, SIZES):
        name = name_of(length)
        start = payload_offset(offset, name=name, size=size)

        headers = render_headers(name, size=size, header_offset=offset, mtime=MTIME)

        assert start % PAGE == 0
        assert offset + len(headers) == start
        assert start - offset < 2 * PAGE, "no more padding than it takes"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("size", SIZES)
def test_tarfile_reads_the_name_and_the_size_back(length: int, size: int) -> None:
    name = name_of(length)
    headers = render_headers(name, size=size, header_offset=512, mtime=MTIME)

    with tarfile.open(fileobj=io.BytesIO(headers)) as tar:
        member = tar.next()

    assert member is not None
    assert (member.name, member.size, member.mtime) == (name, size, MTIME)
    assert member.isreg()
    assert (member.mode, member.uid, member.gid) == (0o644, 0, 0)
    assert member.offset_data == len(headers)


def test_the_comment_says_nothing() -> None:
    headers = render_headers("a", size=1, header_offset=0, mtime=MTIME)

    with tarfile.open(fileobj=io.BytesIO(headers)) as tar:
        member = tar.next()

    assert member is not None
    assert set(member.pax_headers) == {"comment"}
    assert not member.pax_headers["comment"].strip(" ")


def test_headers_follow_from_their_arguments_alone() -> None:
    one = render_headers("a/b", size=7, header_offset=1024, mtime=MTIME)
    two = render_headers("a/b", size=7, header_offset=1024, mtime=MTIME)

    assert one == two
    assert one != render_headers("a/b", size=8, header_offset=1024, mtime=MTIME)
    assert one != render_headers("a/c", size=7, header_offset=1024, mtime=MTIME)
    assert one != render_headers("a/b", size=7, header_offset=1024, mtime=MTIME + 1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("0", "a file"),
        ("2", "a symbolic link"),
        ("5", "a directory"),
        ("x", "a PAX header"),
        ("?", "a member of unknown type"),
    ],
)
def test_a_header_is_described_by_type_name_and_size(kind: str, words: str) -> None:
    header = bytearray(render_headers("some/name", size=8, header_offset=0, mtime=MTIME)[-BLOCK:])
    header[156:157] = kind.encode()

    description = describe_header(bytes(header))

    assert description == f"{words} named 'some/name' of size '00000000010' (octal)"


@pytest.mark.parametrize("block", [b"", b"\xff" * 512, bytes(range(256)) * 2, b"\0" * 257 + b"ustar" + b"\xff" * 250])
def test_any_bytes_can_be_described_in_ascii(block: bytes) -> None:
    assert describe_header(block).isascii()


def test_rounding_up_keeps_multiples() -> None:
    assert [round_up(number, 8) for number in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]
