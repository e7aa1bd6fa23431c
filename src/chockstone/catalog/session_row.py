"""The session row: what is known of a client session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from chockstone.catalog import tables
from chockstone.catalog.rows import Rows

# The first three are the client's words; the server says the others.
FinishReason = Literal["success", "errored", "interrupted", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class SessionRow:
    session_id: str
    owner: str
    project_id: str | None
    display_name: str | None
    tags: Sequence[str]
    user_metadata: Mapping[str, str]
    sdk_version: str
    created_at: datetime
    last_heartbeat_at: datetime
    finished_at: datetime | None
    finish_reason: FinishReason | None
    finish_detail: str | None
    idempotency_key: str | None

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None


SESSION_ROWS: Final = Rows(SessionRow, tables.sessions)
