"""Exports to a collector that does not answer or refuses: one log line, and nothing fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from chockstone.telemetry import tracing
from chockstone.telemetry.tracing import TracingConfig
from support.otlp_collector import Collector, collecting


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector
        tracing.stop()


def wait_for(caplog: pytest.LogCaptureFixture, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)


def test_a_dead_collector_fails_nothing_and_is_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds between batches
    caplog.set_level(logging.INFO)
    with collecting() as gone:
        pass
    tracing.start(TracingConfig(gone.url), role="server")

    for number in range(10_000):  # more than the queue holds
        with tracing.begin_request("GET", traceparent=None, number=number):
            pass
    wait_for(caplog, "traces not exported")
    tracing.stop()

    [said] = [record for record in caplog.records if "traces" in record.getMessage()]
    assert f"endpoint={gone.url} error=" in said.getMessage()
    assert "refused" in said.getMessage()
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_collector_that_refuses_is_named_with_its_reason(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    caplog.set_level(logging.INFO)
    tracing.start(TracingConfig(f"{collector.url}/elsewhere"), role="server")

    with tracing.begin("recovery"):
        pass
    wait_for(caplog, "traces not exported")
    tracing.stop()

    assert "400" in caplog.text
