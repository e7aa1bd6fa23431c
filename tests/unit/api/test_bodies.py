from __future__ import annotations

import threading

import pytest
from fastapi import HTTPException

from chockstone.api.bodies import off_loop, parse_object, refuse_many_containers
from chockstone.wire.failures import BadRequest


def test_a_body_of_too_many_containers_is_refused_before_it_is_decoded() -> None:
    refuse_many_containers(b"[" * 200_000)

    with pytest.raises(HTTPException) as refusal:
        refuse_many_containers(b"[" * 100_001 + b"{" * 100_000)
    assert refusal.value.status_code == 413


@pytest.mark.parametrize(
    ("body", "words"), [(b"{", "is not JSON"), (b"[]", "must be a JSON object"), (b"", "not JSON")]
)
def test_what_is_no_object_is_refused(body: bytes, words: str) -> None:
    assert parse_object(b'{"a": 1}') == {"a": 1}

    with pytest.raises(BadRequest, match=words):
        parse_object(body)


async def test_large_bodies_are_decoded_in_a_thread() -> None:
    here = threading.get_ident()

    assert await off_loop(threading.get_ident, size_bytes=100) == here
    assert await off_loop(threading.get_ident, size_bytes=64 << 10) != here
