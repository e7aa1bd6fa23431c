"""The messages of ``checkpoints``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter
from tinker import types
from tinker.types import (
    checkpoints_list_response,
    external_weights_urls_response,
)

from chockstone.wire.messages import (
    checkpoints,
    schema,
)
from chockstone.wire.paths import Kind, TinkerPath
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    read_request,
    response_ids,
)

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
CHECKPOINT = checkpoints.Checkpoint.at(
    TinkerPath.of("s:train:0", Kind.WEIGHTS, "final"),
    time=NOON,
    size_bytes=5,
    expires_at=NOON,
    user_metadata={"a": "b"},
)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (CHECKPOINT, types.Checkpoint),
    (checkpoints.CheckpointsResponse(checkpoints=[CHECKPOINT]), checkpoints_list_response.CheckpointsListResponse),
    (
        checkpoints.CheckpointsResponse(
            checkpoints=[CHECKPOINT], cursor=checkpoints.Cursor(offset=0, limit=100, total_count=1)
        ),
        checkpoints_list_response.CheckpointsListResponse,
    ),
    (
        checkpoints.ExternalWeightsUrlsResponse(urls={"adapter_config.json": "http://h/x"}, expires=NOON),
        external_weights_urls_response.ExternalWeightsUrlsResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (checkpoints.SetTtlRequest, {}, "ttl_seconds is missing."),
    (checkpoints.SetTtlRequest, {"ttl_seconds": 3599}, "ttl_seconds: 3599 seconds are not between an hour (3600)"),
    (checkpoints.SetTtlRequest, {"ttl_seconds": 10**40}, "seconds are not between an hour (3600) and ten years."),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)


def test_an_expiry_is_taken_away_by_an_explicit_null_only() -> None:
    assert read_request(checkpoints.SetTtlRequest, {"ttl_seconds": None}).ttl_seconds is None
    assert read_request(checkpoints.SetTtlRequest, {"ttl_seconds": 3600}).ttl_seconds == 3600


def test_damage_is_shown_to_clients_that_know_no_states() -> None:
    path = TinkerPath.of("s:train:0", Kind.WEIGHTS, "hurt")

    damaged = checkpoints.Checkpoint.at(
        path, time=NOON, user_metadata={"a": "b"}, state="damaged", damage="block 3 is not what was written"
    )

    answer = orjson.loads(damaged.encode())
    assert (answer["state"], answer["damage"]) == ("damaged", "block 3 is not what was written")
    theirs = TypeAdapter(types.Checkpoint).validate_json(damaged.encode())
    assert theirs.user_metadata == {"a": "b", "chockstone.damage": "block 3 is not what was written"}
