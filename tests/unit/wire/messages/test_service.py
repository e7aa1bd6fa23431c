"""The messages of ``service``: as the SDK sends and reads them, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tinker import types
from tinker.types import (
    client_config_request,
    client_config_response,
    client_dynamic_config_response,
)

from chockstone.wire.messages import (
    schema,
    service,
)
from support.wire.sdk import (
    assert_read_by_the_sdk,
    assert_sent_by_the_sdk_is_read,
    request_ids,
    response_ids,
)

REQUESTS: list[tuple[type[schema.Request], BaseModel]] = [
    (service.ClientConfigRequest, client_config_request.ClientConfigRequest(sdk_version="0.36.0")),
]


@pytest.mark.parametrize(("ours", "theirs"), REQUESTS, ids=request_ids(REQUESTS))
def test_what_the_sdk_sends_is_read_in_full(ours: type[schema.Request], theirs: BaseModel) -> None:
    assert_sent_by_the_sdk_is_read(ours, theirs)


RESPONSES: list[tuple[schema.Response, Any]] = [
    (service.HealthResponse(), types.HealthResponse),
    (
        service.ServerCapabilitiesResponse(
            supported_models=[service.SupportedModel(model_name="b", max_context_length=2048)]
        ),
        types.GetServerCapabilitiesResponse,
    ),
    (service.ClientConfigResponse(), client_config_response.ClientConfigResponse),
    (service.ClientDynamicConfigResponse(), client_dynamic_config_response.ClientDynamicConfigResponse),
    (service.TelemetryResponse(), types.TelemetryResponse),
]


@pytest.mark.parametrize(("ours", "theirs"), RESPONSES, ids=response_ids(RESPONSES))
def test_what_we_answer_is_read_by_the_sdk_in_full(ours: schema.Response, theirs: Any) -> None:
    assert_read_by_the_sdk(ours, theirs)


def test_clients_are_told_how_to_treat_a_server_of_one_s_own() -> None:
    assert orjson.loads(service.ClientConfigResponse().encode()) == {
        "pjwt_auth_enabled": True,
        "parallel_fwdbwd_chunks": False,
        "proto_compress_fwdbwd": False,
        "billing_exception_max_pause_duration_sec": 0,
        "create_model_via_load_weights": True,
        "sample_use_retrieve_futures": True,
        "sample_join_sampling_session": True,
        "custom_loss_server_side": True,
    }
    assert orjson.loads(service.ClientDynamicConfigResponse().encode())["sample_cancel_enabled"] is True
