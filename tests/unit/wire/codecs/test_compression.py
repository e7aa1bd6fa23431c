from __future__ import annotations

import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.wire.codecs.compression import decompress
from chockstone.wire.failures import BadRequest

LIMIT = 1_000_000
CONTENT = b"a training pass " * 400
GOOD = zstandard.ZstdCompressor().compress(CONTENT)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def claiming(size: int) -> bytes:
    """GOOD, with another content size in its header."""
    header = bytearray(GOOD)
    header[5:7] = (size - 256).to_bytes(2, "little")
    return bytes(header)


def test_what_the_sdk_compresses_comes_back() -> None:
    assert decompress(GOOD, LIMIT) == CONTENT
    assert decompress(GOOD, len(CONTENT)) == CONTENT


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body of 0 bytes is not zstd"),
        (b"plain protobuf, perhaps", "is not zstd as its encoding says"),
        (GOOD[:6], "is not zstd"),
        (GOOD[:-1], "damaged or not a single frame"),
        (GOOD + b"x", "damaged or not a single frame"),
        (GOOD + GOOD, "damaged or not a single frame"),
        (GOOD + SKIPPABLE, "damaged or not a single frame"),
        (SKIPPABLE + GOOD, "damaged or not a single frame"),
        (SKIPPABLE, "damaged or not a single frame"),
        (claiming(len(CONTENT) - 1), "damaged or not a single frame"),
        (claiming(len(CONTENT) + 1), "damaged or not a single frame"),
        (zstandard.ZstdCompressor().compress(b""), "has no content"),
        (zstandard.ZstdCompressor().compress(b"") + b"more", "has no content"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(CONTENT), "does not say how large its content is"),
        (zstandard.ZstdCompressor().compress(bytes(LIMIT + 1)), "unpacks to 1000001 bytes, more than the 1000000"),
    ],
)
def test_anything_but_one_whole_frame_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        decompress(body, LIMIT)


def test_a_bomb_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
    tracemalloc.start()

    with pytest.raises(BadRequest):
        decompress(bomb, LIMIT)

    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    st.binary(max_size=100)
    | st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4)).map(
        lambda edit: GOOD[: edit[0]] + edit[1] + GOOD[edit[0] + len(edit[1]) :]
    )
)
def test_any_bytes_give_content_within_the_limit_or_a_refusal(body: bytes) -> None:
    try:
        content = decompress(body, LIMIT)
    except BadRequest:
        return

    assert 0 < len(content) <= LIMIT
