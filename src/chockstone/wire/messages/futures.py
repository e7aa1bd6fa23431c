"""Futures: messages for accepted work, and to fetch its result.

A failed result is ``failures.Failure``; a result is the response of its operation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.schema import Identifier, LongCounter, Request, Response

QueueState = Literal["active", "paused_capacity", "paused_rate_limit"]


class AcceptedResponse(Response):
    """Work was accepted. ``sample_sequence_ids`` must be there for a sample, one for each sequence."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class RetrieveFutureRequest(Request):
    request_id: Identifier
    allow_metadata_only: bool = False


class TryAgainResponse(Response):
    """Not finished; goes with status 408."""

    request_id: str
    queue_state: QueueState = "active"
    queue_state_reason: str | None = None
    type: Literal["try_again"] = "try_again"


class CompleteMetadataResponse(Response):
    """Finished with a large result: the client makes room and asks again, without ``allow_metadata_only``."""

    response_payload_size: int
    status: Literal["complete_metadata"] = "complete_metadata"


class CancelFutureRequest(Request):
    request_id: Identifier


class FuturesTarget(Request):
    """One sampler's requests, of the original client (0) or of one clone."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: Identifier
    cloned_sampler_id: LongCounter = 0


class RetrieveFuturesRequest(Request):
    target: FuturesTarget
    prev_cursor: LongCounter = 0
    timeout: Annotated[float, Field(ge=0)] | None = None
    retrieved_request_ids: list[Identifier] = Field(default_factory=list, max_length=100_000)


class FinishedCompletion(Response):
    request_id: str
    response_payload_uncompressed_size: int | None = None
    state: Literal["finished"] = "finished"


class FailedCompletion(Response):
    request_id: str
    state: Literal["failed"] = "failed"


class RetrieveFuturesResponse(Response):
    completions: list[FinishedCompletion | FailedCompletion]
    cursor: int
