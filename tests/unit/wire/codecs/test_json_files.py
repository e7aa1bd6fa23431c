from __future__ import annotations

import pytest

from chockstone.wire.codecs.json_files import MAX_DEPTH, parse_json


@pytest.mark.parametrize("content", [b"{}", b'{"a": [1, {"b": null}]}', b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, b"7"])
def test_ordinary_json_is_parsed(content: bytes) -> None:
    assert parse_json(content) is not None


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_nested_too_deep_is_a_value_error(depth: int, opening: bytes, closing: bytes) -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_json(opening * depth + b"1" + closing * depth)


def test_what_is_not_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        parse_json(b'{"a": }')
