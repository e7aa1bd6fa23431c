"""Samplers: messages to list sampling sessions with their load."""

from __future__ import annotations

from chockstone.wire.messages.schema import Response, Timestamp


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


class SamplersResponse(Response):
    """Sampling sessions of sessions that are not finished, newest first."""

    samplers: list[SamplerLoad]
    queued: int  # of all samplers of the caller, or of all users for admins
    running: int
    tokens_per_second: float  # generated, in the last minute
    cursor: str | None = None  # of the next page; absent: this is the last
