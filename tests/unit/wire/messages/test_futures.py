"""The messages of ``futures``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    futures_retrieve_request,
    futures_retrieve_response,
    try_again_response,
)

from chockstone.wire.messages import (
    futures,
    schema,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (futures.RetrieveFutureRequest, types.FutureRetrieveRequest(request_id="r", allow_metadata_only=True)),
    (
        futures.RetrieveFuturesRequest,
        futures_retrieve_request.FuturesRetrieveRequest(
            target=futures_retrieve_request.SamplingSessionFuturesTarget(
                sampling_session_id="s:sample:0", cloned_sampler_id=10**9
            ),
            prev_cursor=2**40,
            timeout=25,
            retrieved_request_ids=["a", "b"],
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (futures.AcceptedResponse(request_id="r", sample_sequence_ids=["a"]), types.UntypedAPIFuture),
    (futures.TryAgainResponse(request_id="r", queue_state="paused_capacity"), try_again_response.TryAgainResponse),
    (
        futures.RetrieveFuturesResponse(
            completions=[
                futures.FinishedCompletion(request_id="a", response_payload_uncompressed_size=4),
                futures.FailedCompletion(request_id="b"),
            ],
            cursor=7,
        ),
        futures_retrieve_response.FuturesRetrieveResponse,
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (
        futures.RetrieveFutureRequest,
        {"request_id": "r", "allow_metadata_only": 1},
        "allow_metadata_only must be a valid b",
    ),
    (futures.RetrieveFuturesRequest, {"target": {"type": "run"}}, "target.type must be 'sampling_session', not 'run'."),
    (
        futures.RetrieveFuturesRequest,
        {"target": {"sampling_session_id": "s"}, "timeout": float("inf")},
        "timeout must be a finite number",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)
