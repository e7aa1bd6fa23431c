"""The messages of ``models``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    optimizer,
)

from chockstone.wire.messages import (
    models,
    schema,
    weights,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_refused,
    assert_sent_by_the_sdk_is_read,
    read_request,
    request_ids,
    response_ids,
)

PATH = "tinker://s:train:0/weights/final"


def create_model(**change: Any) -> dict[str, Any]:
    return {"session_id": "s", "model_seq_id": 0, "base_model": "b", **change}


REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (
        models.CreateModelRequest,
        types.CreateModelRequest(
            session_id="s",
            model_seq_id=0,
            base_model="Qwen/Qwen3-8B",
            user_metadata={"renderer_name": "qwen3"},
            lora_config=types.LoraConfig(rank=32, seed=1, train_mlp=False),
            optimizer_config=optimizer.DimuonOptimizerConfig(),
        ),
    ),
    (models.GetInfoRequest, types.GetInfoRequest(model_id="s:train:0")),
    (models.UnloadModelRequest, types.UnloadModelRequest(model_id="s:train:0")),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (models.CreateModelResponse(model_id="m"), types.CreateModelResponse),
    (
        models.GetInfoResponse(
            model_id="m",
            model_data=models.ModelData(model_name="b", tokenizer_id="t"),
            is_lora=True,
            lora_rank=4,
            optimizer_config=models.OptimizerConfig(type="dimuon", version=1),
        ),
        types.GetInfoResponse,
    ),
    (models.UnloadModelResponse(model_id="m"), types.UnloadModelResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


REFUSALS: list[tuple[type[schema.Request], Any, str]] = [
    (models.GetInfoRequest, {}, "model_id is missing."),
    (models.GetInfoRequest, [], "the body must be a valid dictionary or instance of GetInfoRequest, not a list."),
    (models.GetInfoRequest, {"model_id": 4}, "model_id must be a valid string, not 4."),
    (models.GetInfoRequest, {"model_id": ""}, "model_id must have at least 1 character, not 0."),
    (models.GetInfoRequest, {"model_id": "m" * 256}, "model_id must have at most 255 characters, not 256."),
    (
        models.CreateModelRequest,
        create_model(model_seq_id=-1),
        "model_seq_id must be greater than or equal to 0, not -1.",
    ),
    (models.CreateModelRequest, create_model(model_seq_id="0"), "model_seq_id must be a valid integer, not '0'."),
    (models.CreateModelRequest, create_model(model_seq_id=True), "model_seq_id must be a valid integer, not true."),
    (models.CreateModelRequest, create_model(model_seq_id=10**5000), "not an integer of more than 100 bits"),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": -1}),
        "lora_config.rank must be greater than or equal",
    ),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": 8193}),
        "lora_config.rank must be less than or equal",
    ),
    (
        models.CreateModelRequest,
        create_model(lora_config={"rank": 8, "train_mlp": False, "train_attn": False, "train_unembed": False}),
        "lora_config: train_unembed, train_mlp and train_attn are all false: nothing would be trained.",
    ),
    (
        models.CreateModelRequest,
        create_model(optimizer_config={"type": 3}),
        "optimizer_config.type must be a valid string",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata=[]),
        "user_metadata must be a valid dictionary, not a list.",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata={"a": "\ud800"}),
        "'\\ud800' holds a NUL or half a surrogate",
    ),
    (
        models.CreateModelRequest,
        create_model(user_metadata={"a": ["\ud800"]}),
        "'\\ud800' holds a NUL or half a surrogate",
    ),
    (models.CreateModelRequest, create_model(user_metadata={"a": 2**70}), "user_metadata: a value cannot be written"),
    (models.CreateModelRequest, create_model(user_metadata={"a": "x" * 300_000}), "300001 characters are more than"),
    (models.CreateModelRequest, create_model(user_metadata=dict.fromkeys(map(str, range(300)))), "300 fields are more"),
    (models.CreateModelRequest, create_model(base_model="a\0b"), "'a\\x00b' holds a NUL or half a surrogate"),
]


@pytest.mark.parametrize(("request_type", "body", "words"), REFUSALS, ids=[words for *_, words in REFUSALS])
def test_what_is_wrong_is_said(request_type: type[schema.Request], body: Any, words: str) -> None:
    assert_refused(request_type, body, words)


def test_what_older_clients_leave_out_has_a_default() -> None:
    created = read_request(models.CreateModelRequest, {"session_id": "s", "model_seq_id": 0, "base_model": "b"})
    nulled = read_request(
        models.CreateModelRequest,
        {"session_id": "s", "model_seq_id": 0, "base_model": "b", "lora_config": None, "optimizer_config": None},
    )
    loaded = read_request(weights.LoadWeightsRequest, {"model_id": "m", "seq_id": 1, "path": PATH})

    assert created == nulled
    assert (created.lora_config.rank, created.optimizer_config.type) == (32, "adamw")
    assert loaded.optimizer and loaded.session_id is None


def test_a_family_of_optimizers_keeps_its_own_fields() -> None:
    config = models.OptimizerConfig.model_validate({"type": "dimuon", "version": 1})

    assert config.model_dump() == {"type": "dimuon", "version": 1}
