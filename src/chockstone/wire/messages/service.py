"""The service: messages of health, capabilities, client configuration and telemetry."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from chockstone.wire.messages.schema import Request, Response
from chockstone.wire.redaction import redact


class HealthResponse(Response):
    status: Literal["ok"] = "ok"


class ReadinessReason(Response):
    """``engine`` is a check of API replicas only."""

    check: Literal[
        "server", "worker", "models", "journal", "catalog", "store", "disk", "engine"
    ]  # engine: of a replica
    detail: str


class ReadinessResponse(Response):
    status: Literal["ready", "starting", "failing"]  # starting: only the worker is not there, and it is being started
    detail: str | None = None  # all reasons in one sentence
    reasons: list[ReadinessReason] | None = None  # every check that failed; absent: ready


class SupportedModel(Response):
    model_name: str
    max_context_length: int | None = None
    trainable: bool = True
    sampleable: bool = True


class ServerCapabilitiesResponse(Response):
    supported_models: list[SupportedModel]


class ClientConfigRequest(Request):
    """Of both kinds of config."""

    sdk_version: Annotated[str, Field(max_length=100)] = ""


class ClientConfigResponse(Response):
    """Read once by every client object. The defaults are what this server recommends; None leaves it to the client."""

    pjwt_auth_enabled: bool = True
    credential_default_source: Literal["api_key", "credential_cmd"] | None = None
    parallel_fwdbwd_chunks: bool = False  # so that the order of arrival is the order of seq_ids
    proto_compress_fwdbwd: bool = False  # worth it across slow links only
    fwdbwd_max_chunk_len: int | None = None
    fwdbwd_max_chunk_bytes_count: int | None = None
    fwdbwd_dispatch_bytes_semaphore_size: int | None = None
    sample_dispatch_bytes_semaphore_size: int | None = None
    inflight_response_bytes_semaphore_size: int | None = None
    billing_exception_max_pause_duration_sec: int = 0
    sample_no_retries: bool | None = None
    sample_enable_stuck_detection: bool | None = None
    sample_max_concurrent_requests: int | None = None
    use_pyqwest_transport: bool | None = None
    create_model_via_load_weights: bool = True
    sample_use_retrieve_futures: bool = True  # one poll for all samples of a client, not one for each
    sample_join_sampling_session: bool = True
    custom_loss_server_side: bool = True


class ClientDynamicConfigResponse(Response):
    """Read again every ``refresh_interval_sec`` by every live client."""

    refresh_interval_sec: int = 300
    sample_cancel_enabled: bool = True
    sample_cancel_max_batch_size: int = 64


class TelemetryRequest(Request):
    model_config = ConfigDict(extra="allow", allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _is_writable(cls, value: object) -> object:
        return value  # anything: it is redacted before it is logged

    def redacted(self) -> dict[str, Any]:
        fields: dict[str, Any] = redact(self.__pydantic_extra__ or {})
        return fields


class TelemetryResponse(Response):
    status: Literal["accepted"] = "accepted"
