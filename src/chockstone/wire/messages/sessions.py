"""Sessions: messages of client sessions, which own runs and samplers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from chockstone.wire.messages.schema import Identifier, Name, Request, Response, Text, Timestamp, UserMetadata

FinishType = Literal["success", "errored", "interrupted"]
Tag = Annotated[str, Field(max_length=255)]


class CreateSessionRequest(Request):
    tags: list[Tag] = Field(default_factory=list, max_length=100)
    user_metadata: UserMetadata | None = None
    sdk_version: Annotated[str, Field(max_length=100)] = ""
    project_id: Identifier | None = None
    display_name: Name | None = None


class CreateSessionResponse(Response):
    """The messages are logged by the client, at the level they are named for."""

    session_id: str
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None
    type: Literal["create_session"] = "create_session"


class SessionHeartbeatRequest(Request):
    session_id: Identifier


class SessionHeartbeatResponse(Response):
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(Request):
    type: FinishType


class FinishSessionRequest(Request):
    reason: FinishReason
    detail: Text | None = None


class SetProjectRequest(Request):
    project_id: Identifier


class ListSessionsResponse(Response):
    sessions: list[str]


class SessionResponse(Response):
    training_run_ids: list[str]
    sampler_ids: list[str]
    user_metadata: dict[str, str] | None = None
    display_name: str | None = None


class OwnSessions(Request):
    type: Literal["own"] = "own"


class AccessibleSessions(Request):
    type: Literal["accessible"] = "accessible"


class SessionsOfUsers(Request):
    type: Literal["user"] = "user"
    owner_urns: Annotated[list[Identifier], Field(min_length=1, max_length=10)]


SearchOwner = Annotated[OwnSessions | AccessibleSessions | SessionsOfUsers, Field(discriminator="type")]


class PlainStatusQuery(Request):
    type: Literal["active", "cancelled", "failed"]


class FinishedStatusQuery(Request):
    type: Literal["client_finished"]
    reasons: Annotated[list[FinishType], Field(min_length=1, max_length=10)] | None = None


StatusQuery = Annotated[PlainStatusQuery | FinishedStatusQuery, Field(discriminator="type")]


class SearchCursor(Request):
    """Where the next page starts: after this session, newest first."""

    last_created_at: Annotated[AwareDatetime, Field(strict=False)]
    last_session_id: Identifier


class SearchSessionsRequest(Request):
    """``session_id`` and ``display_name`` together are alternatives; all else narrows the search."""

    session_id: Identifier | None = None
    project_ids: Annotated[list[Identifier], Field(max_length=100)] | None = None
    user_metadata: UserMetadata = Field(default_factory=dict)
    display_name: Name | None = None  # every word of it must occur, in any case
    owner: SearchOwner = OwnSessions()
    statuses: Annotated[list[StatusQuery], Field(min_length=1, max_length=20)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: SearchCursor | None = None


class ActiveStatus(Response):
    type: Literal["active"] = "active"


class CancelledStatus(Response):
    type: Literal["cancelled"] = "cancelled"
    detail: str | None = None


class ReportedReason(Response):
    type: FinishType


class FinishedStatus(Response):
    type: Literal["client_finished"] = "client_finished"
    reason: ReportedReason
    detail: str | None = None


class FailedRequest(Response):
    type: Literal["request"] = "request"
    request_id: str
    request_type: str


class FailedRun(Response):
    type: Literal["training_run"] = "training_run"
    training_run_id: str


class FailedSamplingSession(Response):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str


class FailedStatus(Response):
    type: Literal["failed"] = "failed"
    category: Literal["user", "internal"]
    reason: FailedRequest | FailedRun | FailedSamplingSession
    message: str


SessionStatus = ActiveStatus | CancelledStatus | FinishedStatus | FailedStatus


class SessionSummary(Response):
    session_id: str
    created_at: Timestamp
    owner: str
    project_id: str  # clients insist on a string: empty where there is no project
    checkpoints_count: int
    status: SessionStatus | None = None
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class NextPage(Response):
    last_created_at: Timestamp
    last_session_id: str


class SearchSessionsResponse(Response):
    sessions: list[SessionSummary]
    next_cursor: NextPage | None = None


class TraceExportResponse(Response):
    """Clients ask again while it is pending; ``url`` is fetched without credentials once it is ready."""

    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None
