"""The messages of ``weights``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    copy_weights_request,
    copy_weights_response,
    optimizer,
    save_weights_external_request,
    save_weights_external_response,
)
from tinker.types._pydantic_types import save_weights_for_sampler_response as sampler_response

from chockstone.wire.messages import (
    schema,
    weights,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

PATH = "tinker://s:train:0/weights/final"
EXTERNAL = {"model_id": "m", "seq_id": 1, "path": "a"}


REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (
        weights.SaveWeightsRequest,
        types.SaveWeightsRequest(model_id="m", path="000020", seq_id=3, ttl_seconds=3600, user_metadata={"a": "b"}),
    ),
    (weights.SaveWeightsForSamplerRequest, types.SaveWeightsForSamplerRequest(model_id="m", path="final", seq_id=3)),
    (
        weights.SaveWeightsForSamplerRequest,
        types.SaveWeightsForSamplerRequest(model_id="m", sampling_session_seq_id=0, seq_id=3),
    ),
    (weights.LoadWeightsRequest, types.LoadWeightsRequest(model_id="m", seq_id=1, path=PATH, optimizer=False)),
    (
        weights.LoadWeightsRequest,
        types.LoadWeightsRequest(
            session_id="s",
            model_seq_id=0,
            path=PATH,
            optimizer=True,
            base_model="b",
            user_metadata={"a": "b"},
            optimizer_config=optimizer.AdamOptimizerConfig(),
            weights_access_token="tml-other",
        ),
    ),
    (
        weights.SaveWeightsExternalRequest,
        save_weights_external_request.SaveWeightsExternalRequest(
            model_id="m",
            path="adapter",
            seq_id=3,
            ttl_seconds=7200,
            age_encryption_recipients=["age1x", "ssh-ed25519 y"],
        ),
    ),
    (
        weights.CopyWeightsRequest,
        copy_weights_request.CopyWeightsRequest(source_path=PATH, destination_project_id="p", ttl_seconds=3600),
    ),
    (
        weights.CopyWeightsRequest,
        copy_weights_request.CopyWeightsRequest(
            source_path=PATH, session_id="s", model_seq_id=1, weights_access_token="tml-other"
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (weights.SaveWeightsResponse(path=PATH), types.SaveWeightsResponse),
    (weights.SaveWeightsForSamplerResponse(path=PATH), types.SaveWeightsForSamplerResponse),
    (
        weights.SaveWeightsForSamplerResponse(sampling_session_id="s:sample:0"),
        sampler_response.SaveWeightsForSamplerResponseInternal,
    ),
    (weights.LoadWeightsResponse(path=PATH, model_id="m"), types.LoadWeightsResponse),
    (weights.LoadWeightsResponse(), types.LoadWeightsResponse),
    (
        weights.WeightsInfoResponse(base_model="b", is_lora=True, lora_rank=4, train_mlp=False),
        types.WeightsInfoResponse,
    ),
    (
        weights.SaveWeightsExternalResponse(path=PATH, size_bytes=9),
        save_weights_external_response.SaveWeightsExternalResponseInternal,
    ),
    (weights.CopyWeightsResponse(tinker_path=PATH), copy_weights_response.CopyWeightsResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (
        weights.SaveWeightsRequest,
        EXTERNAL | {"path": "latest"},
        "nor 'latest', which stands for the newest checkpoint.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": ["age1x"] * 11},
        "age_encryption_recipients: 11 recipients are too many; there may be up to 10.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": []},
        "age_encryption_recipients: the list is empty: name a recipient, or leave the field out to have plain files.",
    ),
    (
        weights.SaveWeightsExternalRequest,
        EXTERNAL | {"age_encryption_recipients": [""]},
        "age_encryption_recipients[0] must have at least 1 character, not 0.",
    ),
    (weights.CopyWeightsRequest, {"source_path": "weights/a"}, "source_path: 'weights/a' is not a checkpoint."),
    (
        weights.CopyWeightsRequest,
        {"source_path": PATH, "session_id": "s"},
        "session_id and model_seq_id are needed together",
    ),
    (
        weights.CopyWeightsRequest,
        {"source_path": PATH, "session_id": "s", "model_seq_id": 0, "destination_project_id": "p"},
        "either destination_project_id or session_id, and not both.",
    ),
    (weights.SaveWeightsRequest, {"model_id": "m", "seq_id": 1}, "path is missing."),
    (
        weights.SaveWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "../x"},
        "path: '../x' cannot name a checkpoint. A name has 1 to 255 characters",
    ),
    (
        weights.SaveWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "x", "ttl_seconds": 3599},
        "ttl_seconds: 3599 seconds are not between an hour (3600) and ten years.",
    ),
    (
        weights.SaveWeightsForSamplerRequest,
        {"model_id": "m", "seq_id": 1},
        "either path or sampling_session_seq_id is needed, and not both.",
    ),
    (
        weights.LoadWeightsRequest,
        {"model_id": "m", "seq_id": 1, "path": "tinker://m/x"},
        "path: 'tinker://m/x' is not a checkpoint. Paths are tinker://<run id>/<kind>/<name>",
    ),
    (
        weights.LoadWeightsRequest,
        {"path": PATH},
        "either model_id and seq_id, or session_id and model_seq_id are needed.",
    ),
    (weights.LoadWeightsRequest, {"path": PATH, "model_id": "m"}, "either model_id and seq_id, or session_id"),
    (
        weights.LoadWeightsRequest,
        {"path": PATH, "model_id": "m", "seq_id": 1, "session_id": "s"},
        "either model_id and seq_id, or session_id",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)
