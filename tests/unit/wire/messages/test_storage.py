"""The messages of ``storage``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from chockstone.wire.messages import (
    schema,
    storage,
)
from support.wire.sdk import (
    assert_refused,
    read_request,
)

REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (storage.Policy, {"keeplast": 3}, "keeplast is not a field of this request."),
    (storage.Policy, {"keep_last": 0}, "keep_last must be greater than or equal to 1, not 0."),
    (storage.Policy, {"keep_best": {"mode": "min"}}, "keep_best.metric is missing."),
    (storage.Policy, {"keep_best": {"metric": "loss", "mode": "low"}}, "keep_best.mode must be 'min' or 'max'"),
    (storage.Policy, {"ttl_seconds": -1}, "ttl_seconds must be greater than 0"),
    (storage.Policy, {"quota_bytes": 2**63}, "quota_bytes must be less than or equal to"),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)


def test_a_policy_is_kept_as_it_was_given() -> None:
    given = {"keep_last": 3, "keep_best": {"metric": "loss", "mode": "max", "count": 2}, "ttl_seconds": 60}

    assert read_request(storage.Policy, given).to_json() == given
