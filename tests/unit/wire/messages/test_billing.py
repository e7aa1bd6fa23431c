"""The messages of ``billing``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tinker.types import (
    billing_usage_response,
    current_checkpoint_storage_usage_response,
)

from chockstone.wire.messages import (
    billing,
    schema,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    response_ids,
)

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (
        billing.UsageResponse(
            data=[
                billing.UsageEvent(
                    bucket_start=NOON,
                    bucket_end=NOON,
                    base_model="b",
                    user_id="o",
                    user_name="o",
                    session_id="s",
                    project_id="p",
                    event_info=info,
                )
                for info in (
                    billing.TrainingUse(token_count=3),
                    billing.PrefillUse(cached=False, token_count=3),
                    billing.SampleUse(token_count=3),
                    billing.CheckpointUse(count=1),
                    billing.StorageUse(gigabyte_hours=0.5),
                )
            ],
            sessions={"s": billing.UsageSession(user_metadata={"a": "b"}), "t": billing.UsageSession()},
        ),
        billing_usage_response.BillingUsageResponse,
    ),
    (
        billing.StorageUsageResponse(
            data=[
                billing.StorageUsageItem(
                    project_id="p",
                    org_user_urn="o",
                    user_name="o",
                    checkpoint_count=2,
                    size_bytes=10**9,
                    size_gigabytes=1.0,
                )
            ]
        ),
        current_checkpoint_storage_usage_response.CurrentCheckpointStorageUsageResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)
