"""The messages of ``training``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    create_custom_loss_request,
    create_custom_loss_response,
    custom_loss_graph,
    custom_loss_input,
    optimizer,
)

from chockstone.wire.messages import (
    schema,
    training,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

GRAPH = custom_loss_graph.CustomLossGraph(
    nodes=[
        custom_loss_graph.CustomLossNode(op="placeholder", name="logprobs", target="logprobs"),
        custom_loss_graph.CustomLossNode(op="call_method", name="sum_1", target="sum", args=[{"ref": "logprobs"}]),
        custom_loss_graph.CustomLossNode(
            op="output", name="output", target="output", args=[{"tuple": [{"ref": "sum_1"}]}]
        ),
    ]
)


REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (training.OptimStepRequest, types.OptimStepRequest(optim_params=types.AdamParams(), model_id="m", seq_id=2)),
    (
        training.OptimStepRequest,
        types.OptimStepRequest(optim_params=optimizer.DimuonParams(learning_rate=1e-3), model_id="m", seq_id=2),
    ),
    (
        training.CreateCustomLossRequest,
        create_custom_loss_request.CreateCustomLossRequest(
            session_id="s",
            custom_loss_seq_id=0,
            name="mine",
            inputs=[
                custom_loss_input.CustomLossInput(name="logprobs", rank=1),
                custom_loss_input.CustomLossInput(name="beta", rank=0),
            ],
            graph=GRAPH,
        ),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (training.OptimStepResponse(metrics={"grad_norm": 1.0}), types.OptimStepResponse),
    (training.OptimStepResponse(), types.OptimStepResponse),
    (training.CreateCustomLossResponse(loss_id="l"), create_custom_loss_response.CreateCustomLossResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (
        training.OptimStepRequest,
        {"model_id": "m", "seq_id": 0, "adam_params": {}},
        "seq_id must be greater than or equal to 1",
    ),
    (
        training.OptimStepRequest,
        {"model_id": "m", "seq_id": 2**31, "adam_params": {}},
        "seq_id must be less than or equal to",
    ),
    (training.OptimStepRequest, {"model_id": "m", "seq_id": 1}, "either adam_params or optimizer_params is needed"),
    (
        training.OptimStepRequest,
        {"model_id": "m", "seq_id": 1, "adam_params": {}, "optimizer_params": {"type": "a"}},
        "either adam_params or optimizer_params is needed, and not both.",
    ),
    (
        training.OptimStepRequest,
        {"model_id": "m", "seq_id": 1, "optimizer_params": {}},
        "optimizer_params.type is missing",
    ),
    (
        training.CreateCustomLossRequest,
        {
            "session_id": "s",
            "custom_loss_seq_id": 0,
            "name": "n",
            "inputs": [{"name": "a", "rank": 1}],
            "graph": {"nodes": [{"op": "output", "name": "o", "target": "output"}]},
        },
        "the first of inputs must be 'logprobs', of rank 1 or 2.",
    ),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)
