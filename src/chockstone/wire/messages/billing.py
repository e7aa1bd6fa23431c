"""Billing: usage by the hour, and stored bytes. Nothing has a price here, so prices are absent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.schema import Response, Timestamp


class TrainingUse(Response):
    token_count: int
    type: Literal["training"] = "training"


class PrefillUse(Response):
    cached: bool
    token_count: int
    type: Literal["sampling_prefill"] = "sampling_prefill"


class SampleUse(Response):
    token_count: int
    type: Literal["sampling_sample"] = "sampling_sample"


class CheckpointUse(Response):
    count: int
    type: Literal["checkpoint"] = "checkpoint"


class StorageUse(Response):
    gigabyte_hours: float
    type: Literal["storage"] = "storage"


UseInfo = Annotated[
    TrainingUse | PrefillUse | SampleUse | CheckpointUse | StorageUse,
    Field(discriminator="type"),
]


class UsageEvent(Response):
    bucket_start: Timestamp
    bucket_end: Timestamp
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    event_info: UseInfo


class UsageSession(Response):
    user_metadata: dict[str, str] | None = None


class UsageResponse(Response):
    data: list[UsageEvent]
    sessions: dict[str, UsageSession]


class StorageUsageItem(Response):
    project_id: str | None = None
    org_user_urn: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float


class StorageUsageResponse(Response):
    data: list[StorageUsageItem]
