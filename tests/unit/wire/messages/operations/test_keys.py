from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from chockstone.wire.messages.operations.keys import CreateKeyRequest, CreateKeyResponse
from support.wire.sdk import assert_refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "user_id is missing."),
        ({"user_id": ""}, "user_id must have at least 1 character"),
        ({"user_id": "a" * 256}, "user_id must have at most 255 characters"),
        ({"user_id": "ann", "note": "n" * 501}, "note must have at most 500 characters"),
        ({"user_id": 5}, "user_id must be a valid string"),
    ],
)
def test_what_is_wrong_is_said(body: Any, words: str) -> None:
    assert_refused(CreateKeyRequest, body, words)


def test_a_key_is_in_the_answer_and_not_in_its_repr() -> None:
    answer = CreateKeyResponse(
        key_id=1,
        user_id="ann",
        key="tml-secret",
        hint="cret",
        note="",
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        closed_server=False,
        detail="",
    )

    assert b"tml-secret" in answer.encode()
    assert "tml-secret" not in repr(answer)
