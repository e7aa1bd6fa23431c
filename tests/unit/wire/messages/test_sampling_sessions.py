"""The messages of ``sampling_sessions``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    join_sampling_session_request,
    join_sampling_session_response,
)

from chockstone.wire.messages import (
    sampling_sessions,
    schema,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

PATH = "tinker://s:train:0/weights/final"


REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (
        sampling_sessions.CreateSamplingSessionRequest,
        types.CreateSamplingSessionRequest(session_id="s", sampling_session_seq_id=0, model_path=PATH, base_model="b"),
    ),
    (
        sampling_sessions.JoinSamplingSessionRequest,
        join_sampling_session_request.JoinSamplingSessionRequest(sampling_session_id="s:sample:0"),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (
        sampling_sessions.CreateSamplingSessionResponse(sampling_session_id="s:sample:0"),
        types.CreateSamplingSessionResponse,
    ),
    (
        sampling_sessions.JoinSamplingSessionResponse(client_counter=1),
        join_sampling_session_response.JoinSamplingSessionResponse,
    ),
    (sampling_sessions.SamplerResponse(sampler_id="s:sample:0", base_model="b"), types.GetSamplerResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (
        sampling_sessions.CreateSamplingSessionRequest,
        {"session_id": "s", "sampling_session_seq_id": 0},
        "either model_path or base_model is needed.",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)
