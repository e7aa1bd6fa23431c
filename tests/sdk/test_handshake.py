"""The first words between a client and the server, and what a client sends besides its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import tinker
from tinker import types
from tinker.lib.api_future_impl import _APIFuture

from sdk.making import rest_client
from support.live import LiveServer

SECRET = "tml-a-key-that-nobody-may-see"


def test_the_client_learns_what_the_server_offers(service: tinker.ServiceClient) -> None:
    config = service.holder.get_client_config()
    dynamic = service.holder.get_client_dynamic_config()

    assert config.pjwt_auth_enabled
    assert config.create_model_via_load_weights
    assert config.custom_loss_server_side
    assert config.sample_use_retrieve_futures
    assert config.sample_join_sampling_session
    assert not config.parallel_fwdbwd_chunks
    assert config.billing_exception_max_pause_duration_sec == 0
    assert dynamic.sample_cancel_enabled


def test_unset_flags_keep_the_defaults_of_the_client(service: tinker.ServiceClient) -> None:
    config, default = service.holder.get_client_config(), types.ClientConfigResponse()

    for flag in ("fwdbwd_max_chunk_len", "sample_max_concurrent_requests", "use_pyqwest_transport"):
        assert getattr(config, flag) == getattr(default, flag)


def test_capabilities_name_every_model(live: LiveServer, service: tinker.ServiceClient) -> None:
    supported = service.get_server_capabilities().supported_models

    assert {model.model_name for model in supported} == set(live.models)
    assert all(model.max_context_length == 8192 for model in supported)
    assert all(model.trainable and model.sampleable for model in supported)


def test_capabilities_and_health_do_not_wait_for_torch(start_server: Callable[..., LiveServer]) -> None:
    server = start_server()  # answers, while its worker imports torch

    with server.http() as http:
        started = time.monotonic()
        assert http.get("healthz").json() == {"status": "ok"}
        assert len(http.get("get_server_capabilities").json()["supported_models"]) == 2
        assert time.monotonic() - started < 1.0
    server.kill()


def test_telemetry_never_tells_the_log_a_credential(
    start_server: Callable[..., LiveServer], connect: Callable[..., tinker.ServiceClient]
) -> None:
    server = start_server("--log-level", "debug", f"--key=ann={SECRET}")
    service = connect(server, key=SECRET)
    unknown = types.UntypedAPIFuture(request_id="nobody-promised-this")

    with pytest.raises(ValueError):
        _APIFuture(types.OptimStepResponse, service.holder, unknown, time.time(), "OptimStep").result()
    with pytest.raises(tinker.BadRequestError):
        service.create_lora_training_client(base_model="no-such-model")
    service.close("errored", detail="on purpose").result()

    server.kill()
    log = server.log()
    assert "telemetry user=ann" in log
    assert "nobody-promised-this" in log  # the event about the failed poll, which quotes its headers
    assert "[redacted]" in log
    assert SECRET not in log
    assert "eyJ" not in log  # nor the token that stands for the key


@pytest.mark.parametrize("batch", [{}, {"events": "?"}, {"events": [{"traceback": "x" * 100_000}], "more": [None]}])
def test_telemetry_takes_anything(live: LiveServer, batch: dict[str, object]) -> None:
    with live.http() as http:
        answer = http.post("telemetry", json=batch)

    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})


def test_whoami_reads_the_token(live: LiveServer) -> None:
    me = rest_client(live).whoami().result()

    assert me.user_urn == "local"
    assert me.org_urn == "tml:organization:local"


def test_a_token_is_as_good_as_its_key(live: LiveServer, connect: Callable[..., tinker.ServiceClient]) -> None:
    with live.http() as http:
        token = http.post("auth/token", json={}).json()["jwt"]

    models = connect(live, key=token).get_server_capabilities().supported_models

    assert len(models) == 2


def test_a_token_lives_long_enough_for_clients_not_to_spin(live: LiveServer) -> None:
    import jwt

    with live.http() as http:
        token = http.post("auth/token", json={}).json()["jwt"]

    claims = SimpleNamespace(**jwt.decode(token, options={"verify_signature": False}))
    assert claims.exp - claims.iat >= 15 * 60


def test_the_key_says_whose_it_is(live: LiveServer) -> None:
    with live.http() as http:
        me = http.get("auth/apikey/me").json()

    assert isinstance(me["key_id"], int)
    assert me["name"] == "local"
    assert me["details"]["user_details"]["email"] == "local"
    assert me["details"]["org_details"]["name"]
