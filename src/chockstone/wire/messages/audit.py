"""The audit: messages that tell who did what to which checkpoint, and when."""

from __future__ import annotations

from typing import Any, Literal

from chockstone.wire.messages.schema import Response, Timestamp

EventType = Literal["all", "checkpoints", "projects", "teams", "organizations"]


class AuditEntry(Response):
    timestamp: Timestamp
    event: str  # <resource>_<action>
    event_details: dict[str, Any]  # Any: plain JSON
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditResponse(Response):
    """Oldest first."""

    entries: list[AuditEntry]
