from __future__ import annotations

import logging

import pytest

from support.api.users import MODEL, User
from support.served import Served


async def test_health_needs_no_worker_and_readiness_does(served: Served) -> None:
    assert (await served.http.get("healthz")).json() == {"status": "ok"}

    ready = await served.http.get("readyz")
    assert ready.status_code == (200 if served.engine.is_ready else 503)
    assert ready.json()["status"] in ("ready", "starting")


async def test_the_served_models_are_listed(ann: User) -> None:
    capabilities = (await ann.http.get("get_server_capabilities")).json()

    assert capabilities["supported_models"] == [
        {"model_name": MODEL, "max_context_length": 128, "trainable": True, "sampleable": True}
    ]


async def test_telemetry_is_logged_without_credentials(ann: User, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="chockstone.api.tinker.service")

    answer = await ann.http.post("telemetry", json={"events": [{"headers": {"X-API-Key": "tml-of-ann"}, "n": 1}]})

    assert answer.json() == {"status": "accepted"}
    assert "telemetry user=ann" in caplog.text
    assert "tml-of-ann" not in caplog.text
