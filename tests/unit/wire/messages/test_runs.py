"""The messages of ``runs``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tinker import types

from chockstone.wire.messages import (
    checkpoints,
    runs,
    schema,
)
from chockstone.wire.paths import Kind, TinkerPath
from support.wire.sdk import (
    assert_read_by_the_sdk,
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
RUN = runs.TrainingRun(
    training_run_id="s:train:0",
    base_model="b",
    model_owner="o",
    is_lora=True,
    last_request_time=NOON,
    lora_rank=32,
    last_checkpoint=CHECKPOINT,
    user_metadata={"a": "b"},
)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (RUN, types.TrainingRun),
    (
        runs.TrainingRunsResponse(training_runs=[RUN], cursor=checkpoints.Cursor(offset=0, limit=20, total_count=1)),
        types.TrainingRunsResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)
