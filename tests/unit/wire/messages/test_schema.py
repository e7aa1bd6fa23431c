"""What all messages share: times, metadata, unknown fields, and how a refusal is explained."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import orjson
import pytest
from pydantic import ValidationError

from chockstone.wire.failures import BadRequest
from chockstone.wire.messages import (
    models,
    schema,
    sessions,
    weights,
)
from support.wire.sdk import (
    read_request,
)

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
PATH = "tinker://s:train:0/weights/final"
SUMMARY = sessions.SessionSummary(
    session_id="s", created_at=NOON, owner="o", project_id="", checkpoints_count=2, checkpoint_storage_bytes=9
)


def test_times_are_written_in_utc_with_a_z() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))

    answer = orjson.loads(SUMMARY.model_copy(update={"created_at": elsewhere}).encode())

    assert answer["created_at"] == "2026-01-02T12:30:00Z"
    with pytest.raises(ValidationError):
        sessions.NextPage(last_created_at=NOON.replace(tzinfo=None), last_session_id="s")


def test_metadata_becomes_text() -> None:
    given = {"a": "b", "rank": 8, "lr": 1e-4, "on": True, "none": None, "list": [1, "x"], "é": {"k": 2.5}}

    read = read_request(sessions.CreateSessionRequest, {"tags": [], "user_metadata": given, "sdk_version": "1"})

    assert read.user_metadata == {
        "a": "b",
        "rank": "8",
        "lr": "0.0001",
        "on": "true",
        "none": "null",
        "list": '[1,"x"]',
        "é": '{"k":2.5}',
    }


def test_fields_of_other_versions_are_let_pass() -> None:
    assert read_request(models.GetInfoRequest, {"model_id": "m", "type": "get_info", "new": {"a": 1}}).model_id == "m"


def test_explicit_nulls_are_absent() -> None:
    finish = read_request(sessions.FinishSessionRequest, {"reason": {"type": "success"}, "detail": None})

    assert finish.detail is None


def test_a_refusal_repeats_no_credential() -> None:
    body = {"model_id": "m", "seq_id": "tml-key", "path": "tml-key", "weights_access_token": ["hunter2"]}

    with pytest.raises(BadRequest) as refusal:
        read_request(weights.LoadWeightsRequest, body)

    assert "tml-key" not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    assert "tml-other" not in repr(
        read_request(
            weights.LoadWeightsRequest,
            {"model_id": "m", "seq_id": 1, "path": PATH, "weights_access_token": "tml-other"},
        )
    )


def test_errors_of_a_framework_are_explained_alike() -> None:
    errors = [{"type": "missing", "loc": ("body", "model_id"), "msg": "Field required", "input": {}}]

    assert schema.explain(errors) == "model_id is missing."
    assert schema.explain([{**errors[0], "loc": ("query", "limit")}]) == "limit is missing."
    assert schema.explain([{**errors[0], "loc": ("path",)}]) == "path is missing."
