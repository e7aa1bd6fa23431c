"""Samplers: messages to list sampling sessions with their load, and to check how exact vLLM servers are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.schema import Request, Response, Timestamp


class SamplerGapReport(Response):
    """How far the log-probabilities of a vLLM server are from the worker's: absolute differences in nats."""

    server: str  # its URL
    mean: float | None = None  # absent: it could not be measured
    largest: float | None = None
    tokens: int = 0  # that were compared
    trouble: str | None = None  # why it could not be measured
    is_within_limit: bool | None = None  # absent: there is no limit
    measured_at: Timestamp


class SamplerLoad(Response):
    """``requests`` and tokens are counted since the server started."""

    sampling_session_id: str
    session_id: str
    owner: str
    base_model: str
    tinker_path: str | None = None  # absent: the base model, or weights without a name
    is_anonymous: bool  # weights without a name, made by save_weights_and_get_sampling_client
    created_at: Timestamp
    queued: int  # requests that wait to be sent to the worker
    running: int  # requests that the worker has
    requests: int  # that ended
    prompt_tokens: int
    tokens: int  # that were generated
    last_used_at: Timestamp | None = None
    gaps: list[SamplerGapReport] = []  # of its weights, as they were last measured on each vLLM server


class SamplersResponse(Response):
    """Sampling sessions of sessions that are not finished, newest first."""

    samplers: list[SamplerLoad]
    queued: int  # of all samplers of the caller, or of all users for admins
    running: int
    tokens_per_second: float  # generated, in the last minute
    cursor: str | None = None  # of the next page; absent: this is the last
    gap_limit: float | None = None  # of the mean gap; absent: without vLLM servers, or without a limit


class CheckSamplerRequest(Request):
    sampler: Annotated[
        str, Field(min_length=1, max_length=1000)
    ]  # path of a checkpoint (tinker://…), or id of a sampling session


class CheckSamplerResponse(Response):
    base_model: str
    tinker_path: str | None = None  # absent: the base model, or weights without a name
    gap_limit: float | None = None
    gaps: list[SamplerGapReport]  # of each vLLM server of the model
    served_by: Literal["vllm", "worker"] | None = None  # absent: no vLLM server could be asked
