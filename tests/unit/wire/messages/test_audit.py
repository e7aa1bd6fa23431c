"""The messages of ``audit``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tinker.types import (
    audit_log_response,
)

from chockstone.wire.messages import (
    audit,
    schema,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    response_ids,
)

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
PATH = "tinker://s:train:0/weights/final"


RESPONSES: list[tuple[schema.Response, Any]] = [
    (
        audit.AuditResponse(
            entries=[
                audit.AuditEntry(
                    timestamp=NOON,
                    event="checkpoint_read",
                    event_details={"by": "o", "n": 3},
                    model_id="m",
                    tinker_path=PATH,
                    purpose="download",
                )
            ]
        ),
        audit_log_response.AuditLogResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)
