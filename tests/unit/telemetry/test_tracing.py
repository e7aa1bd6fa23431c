"""Tracing against a real collector on loopback; while it is off, nothing of OpenTelemetry is loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chockstone.telemetry import tracing
from chockstone.telemetry.tracing import TracingConfig
from support.otlp_collector import Collector, collecting
from support.source_trees import SOURCE, source_paths

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector
        tracing.stop()


def test_a_request_is_part_of_the_clients_trace_and_its_parts_are_below_it(collector: Collector) -> None:
    tracing.start(TracingConfig(collector.url), role="server")

    with tracing.begin_request("POST", traceparent=TRACEPARENT, **{"http.request.method": "POST"}) as request:
        operation = tracing.span("operation.save_weights", run="s:train:0")
        with operation.part("journal.append"):
            pass
        remote = tracing.traceparent()
        request.rename("POST /save_weights")
    with operation, tracing.continuing(remote), pytest.raises(ValueError, match="disk"):
        with tracing.span("worker.save"):
            raise ValueError("disk")
    tracing.stop()

    spans = {each.name: each for each in collector.until(lambda spans: len(spans) == 4)}
    http = spans["POST /save_weights"]
    assert {each.trace_id for each in spans.values()} == {TRACE_ID}
    assert http.parent_id == SPAN_ID
    assert spans["operation.save_weights"].parent_id == http.span_id
    assert spans["journal.append"].parent_id == spans["operation.save_weights"].span_id
    assert spans["worker.save"].parent_id == http.span_id
    assert spans["worker.save"].is_failure and not http.is_failure
    assert spans["operation.save_weights"].attributes == {"chockstone.run": "s:train:0"}
    assert (http.resource["service.name"], http.role) == ("chockstone", "server")


def test_without_a_trace_in_progress_only_a_beginning_is_recorded(collector: Collector) -> None:
    tracing.start(TracingConfig(collector.url), role="server")

    with tracing.span("catalog.read"):
        pass
    with tracing.begin("recovery", run="s:train:0"):
        with tracing.span("recovery.load"):
            pass
    tracing.stop()

    names = [each.name for each in collector.until(lambda spans: len(spans) >= 2)]
    assert sorted(names) == ["recovery", "recovery.load"]


@pytest.mark.parametrize(
    ("ratio", "flags", "recorded"), [(0.0, "01", 0), (1.0, "00", 0), (1.0, "01", 2), (None, "01", 2)]
)
def test_a_client_cannot_have_more_traces_recorded_than_the_ratio(
    collector: Collector, ratio: float | None, flags: str, recorded: int
) -> None:
    tracing.start(TracingConfig(collector.url, ratio), role="server")

    with tracing.begin_request("GET", traceparent=f"{TRACEPARENT[:-2]}{flags}"):
        inherited = tracing.traceparent()
        with tracing.span("catalog.read"):
            pass
    tracing.stop()

    assert len(collector.spans) == recorded
    assert inherited is not None and inherited[3:35] == TRACE_ID
    assert inherited.endswith("01" if recorded else "00")


@pytest.mark.parametrize(
    "sent",
    [
        None,
        7,
        "",
        TRACEPARENT.upper(),
        f"{TRACEPARENT}-x",
        f"ff{TRACEPARENT[2:]}",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{TRACEPARENT}\n",
        "00-" + "a" * 10_000,
    ],
)
def test_a_field_that_is_no_traceparent_is_ignored(sent: object) -> None:
    assert tracing.accept_traceparent(sent) is None


def test_the_standard_variables_turn_tracing_on_and_off(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer-7")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    assert TracingConfig().is_on

    tracing.start(TracingConfig(), role="worker")
    with tracing.begin("recovery"):
        pass
    tracing.stop()

    [span] = collector.until(bool)
    assert (span.resource["service.name"], span.role) == ("trainer-7", "worker")
    assert span.resource["deployment.environment"] == "test"
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not TracingConfig(collector.url).is_on


def test_while_tracing_is_off_nothing_is_imported_and_spans_are_one_object() -> None:
    code = (
        "import sys\n"
        "from chockstone.telemetry import tracing\n"
        "tracing.start(tracing.TracingConfig(), role='server')\n"
        "spans = {tracing.span('a', x=1), tracing.begin('b'), tracing.begin_request('c', traceparent=None)}\n"
        "with tracing.span('a') as span, tracing.continuing(None), span.current():\n"
        "    span.part('b').end(); span.set(x=1); span.rename('y'); span.fail('z')\n"
        "print(len(spans), tracing.traceparent(), any(name.startswith('opentelemetry') for name in sys.modules))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin"}
    )

    assert ended.stdout.split() == ["1", "None", "False"]


def test_only_tracing_its_encoding_and_its_export_import_opentelemetry() -> None:
    importing = set()
    for path in source_paths():
        if "opentelemetry" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module.partition(".")[0] == "opentelemetry" for module in modules):
                importing.add(str(path.relative_to(SOURCE)))

    assert importing == {f"telemetry/{name}.py" for name in ("trace_encoding", "trace_export", "tracing")}
