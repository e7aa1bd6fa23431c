"""The messages of ``sessions``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    search_owner,
    session_search_cursor,
    session_search_request,
    session_search_response,
    session_status_query,
)

from chockstone.wire.messages import (
    schema,
    sessions,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
SUMMARY = sessions.SessionSummary(
    session_id="s", created_at=NOON, owner="o", project_id="", checkpoints_count=2, checkpoint_storage_bytes=9
)
FAILED_BY = [
    sessions.FailedRequest(request_id="r", request_type="Sample"),
    sessions.FailedRun(training_run_id="t"),
    sessions.FailedSamplingSession(sampling_session_id="s"),
]
STATUSES: list[sessions.SessionStatus] = [
    sessions.ActiveStatus(),
    sessions.CancelledStatus(detail="d"),
    sessions.FinishedStatus(reason=sessions.ReportedReason(type="errored"), detail="d"),
    *(sessions.FailedStatus(category="user", reason=reason, message="m") for reason in FAILED_BY),
]


REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (
        sessions.CreateSessionRequest,
        types.CreateSessionRequest(tags=["a"], user_metadata={"a": "b"}, sdk_version="0.36.0", display_name="d"),
    ),
    (sessions.SessionHeartbeatRequest, types.SessionHeartbeatRequest(session_id="s")),
    (
        sessions.SearchSessionsRequest,
        session_search_request.SessionSearchRequest(
            session_id="s",
            project_ids=["p"],
            user_metadata={"a": "b"},
            display_name="two words",
            owner=search_owner.UserSearchOwner(owner_urns=["u"]),
            statuses=[
                session_status_query.ActiveSessionStatusQuery(),
                session_status_query.ClientFinishedSessionStatusQuery(reasons=["errored"]),
            ],
            limit=200,
            cursor=session_search_cursor.SessionSearchCursor(last_created_at=NOON, last_session_id="t"),
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (sessions.CreateSessionResponse(session_id="s", info_message="hello"), types.CreateSessionResponse),
    (sessions.SessionHeartbeatResponse(), types.SessionHeartbeatResponse),
    (sessions.ListSessionsResponse(sessions=["s"]), types.ListSessionsResponse),
    (
        sessions.SessionResponse(training_run_ids=["s:train:0"], sampler_ids=[], user_metadata={"a": "b"}),
        types.GetSessionResponse,
    ),
    (
        sessions.SearchSessionsResponse(
            sessions=[SUMMARY, *(SUMMARY.model_copy(update={"status": status}) for status in STATUSES)],
            next_cursor=sessions.NextPage(last_created_at=NOON, last_session_id="s"),
        ),
        session_search_response.SessionSearchResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (sessions.CreateSessionRequest, {"tags": ["a"] * 101}, "tags must have at most 100 items, not 101."),
    (sessions.CreateSessionRequest, {"tags": [1]}, "tags[0] must be a valid string, not 1."),
    (sessions.FinishSessionRequest, {"reason": {"type": "bored"}}, "reason.type must be 'success', 'errored' or"),
    (sessions.SearchSessionsRequest, {"limit": 201}, "limit must be less than or equal to 200, not 201."),
    (sessions.SearchSessionsRequest, {"owner": {"type": "all"}}, "owner: Input tag 'all' found"),
    (
        sessions.SearchSessionsRequest,
        {"owner": {"type": "user", "owner_urns": []}},
        "owner_urns must have at least 1 item, not 0.",
    ),
    (
        sessions.SearchSessionsRequest,
        {"cursor": {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "s"}},
        "cursor.last_created_at must have timezone info",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)
