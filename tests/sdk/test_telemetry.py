"""Logs and traces of a server that the SDK trains on: one trace and one request id from HTTP to the worker and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from sdk.commands import said, tinker_command
from sdk.making import create, tokens, train
from support.live import LiveServer
from support.otlp_collector import CollectedSpan, Collector, collecting
from support.perfetto import read_trace

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "X-Request-ID": "training-7"}
Connect = Callable[..., tinker.ServiceClient]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(
    models: dict[str, Path], collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    flags = [f"--otlp-endpoint={collector.url}", "--log-format=json", "--log-level=debug", "--recovery-steps=2"]
    with LiveServer({"tiny-qwen3": models["tiny-qwen3"]}, tmp_path_factory.mktemp("traced"), *flags) as server:
        yield server


def lines_of(server: LiveServer) -> list[dict[str, Any]]:
    """All that it logged. Beside that it prints its banner, which has no brace."""
    return [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]


def below(spans: list[CollectedSpan], ancestor: CollectedSpan) -> list[CollectedSpan]:
    found = [ancestor]
    for each in found:
        found += [span for span in spans if span.parent_id == each.span_id and span.trace_id == each.trace_id]
    return found


def names(spans: list[CollectedSpan]) -> set[str]:
    return {each.name for each in spans}


def test_one_trace_leads_from_http_through_lane_and_journal_to_worker_save_and_catalog(
    traced: LiveServer, collector: Collector, connect: Connect
) -> None:
    run = create(connect(traced, default_headers_overrides=TRACED))
    train(run, 2)
    run.save_state("traced").result()

    spans = [
        each
        for each in collector.until(lambda spans: {"save.commit", "save.write", "worker.optim_step"} <= names(spans))
        if each.trace_id == TRACE_ID
    ]
    [http] = [each for each in spans if each.name == "POST /save_weights"]
    assert http.parent_id == SPAN_ID
    assert http.attributes["chockstone.x_request_id"] == "training-7"
    saved = {each.name: each for each in below(spans, http)}
    assert {
        "operation.save_weights",
        "journal.append",
        "lane.wait",
        "worker.call",
        "worker.save",
        "save.snapshot",
        "save.write",
        "save.commit",
        "catalog.write",
    } <= set(saved)
    assert saved["worker.save"].role == "worker" and saved["save.commit"].role == "server"
    assert saved["save.snapshot"].parent_id == saved["worker.save"].span_id
    assert saved["worker.save"].parent_id == saved["worker.call"].span_id
    assert saved["save.snapshot"].ended_ns <= saved["save.write"].ended_ns <= saved["save.commit"].ended_ns
    passes = [each for each in spans if each.name == "POST /forward_backward"]
    assert len(passes) == 2
    assert {"worker.forward_backward", "lane.wait", "journal.append"} <= names(below(spans, passes[0]))


def test_every_line_is_json_and_lines_of_server_and_worker_have_the_id_of_the_request(
    traced: LiveServer, connect: Connect
) -> None:
    run = create(connect(traced, default_headers_overrides={"X-Request-ID": "training-8"}))
    run.save_state("logged").result()
    with pytest.raises(tinker.TinkerError):
        run.save_state("logged").result()

    lines = lines_of(traced)
    own = [line for line in lines if line.get("x_request_id") == "training-8"]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
    assert any(line["logger"].startswith("uvicorn") for line in lines)
    assert len({line["process"] for line in own}) == 2  # the server and its worker
    finished = [line["fields"] for line in own if line["message"].startswith("request finished")]
    assert {"POST /create_model", "POST /save_weights"} <= {fields["route"] for fields in finished}
    [saved] = [line for line in own if line["logger"].endswith("runs.saving")]
    assert (saved["level"], saved["fields"]["name"]) == ("INFO", "logged")
    [failed] = [line for line in own if line["level"] == "WARNING"]
    assert (failed["fields"]["owner"], failed["fields"]["route"]) == ("local", "save")


def test_a_recovery_is_traced_and_its_operations_keep_their_id(
    traced: LiveServer, collector: Collector, connect: Connect
) -> None:
    run = create(connect(traced, default_headers_overrides={"X-Request-ID": "training-9"}))
    train(run, 1)

    traced.kill()
    traced.start()
    train(run, 2, start=1)

    spans = collector.until(lambda spans: {"recovery", "recovery.load", "recovery.replay"} <= names(spans))
    mine = [each for each in spans if each.name == "recovery" and each.attributes["chockstone.run"] == run.model_id]
    replayed = [each for each in below(spans, mine[0]) if each.name == "recovery.replay"]
    assert {each.attributes["chockstone.operation"] for each in replayed} >= {"forward_backward", "optim_step"}
    opened = [
        line
        for line in lines_of(traced)
        if line["message"].startswith("run opened") and line["fields"]["run"] == run.model_id
    ]
    assert [line["x_request_id"] for line in opened] == ["training-9"] * 2  # at first, and in the replay


def test_an_exported_trace_shows_each_operation_with_its_wait_and_its_execution(
    traced: LiveServer, connect: Connect, tmp_path: Path
) -> None:
    service = connect(traced)
    run = create(service)
    train(run, 3)
    run.save_state("drawn").result()
    sampler = run.save_weights_and_get_sampling_client()
    prompt, wanted = types.ModelInput.from_ints(tokens(1, 4)), types.SamplingParams(max_tokens=3, stop=[])
    sampler.sample(prompt, num_samples=1, sampling_params=wanted).result()
    tinker_cli = tinker_command(traced, tmp_path)
    exported = tmp_path / "session.pftrace"

    said(tinker_cli("session", "export-trace", service.holder.get_session_id(), "-o", str(exported)))

    trace = read_trace(exported.read_bytes())
    rows = {track for track, name in trace.tracks.items() if name.startswith("operations")}
    operations = [each for each in trace.slices if each.depth == 0 and each.track in rows]
    assert [each.name for each in sorted(operations, key=lambda each: each.details["sequence"])] == [
        "create_model",
        *["forward_backward", "optim_step"] * 3,
    ]
    for each in operations:  # with its wait and its execution inside, one after the other
        inside = [
            part
            for part in trace.slices
            if part.track == each.track
            and part.depth == 1
            and each.started_ns <= part.started_ns
            and part.ended_ns <= each.ended_ns
        ]
        assert [part.name for part in sorted(inside, key=lambda part: part.started_ns)] in ([], ["wait", "execute"])
    executions = sorted(
        (each.started_ns, each.ended_ns) for each in trace.slices if each.name == "execute" and each.track in rows
    )
    assert all(one[1] <= other[0] for one, other in pairwise(executions))  # a run does one thing at a time
    assert {"save_weights", "save_weights_for_sampler"} <= set(trace.names_by_track()["saves"])
    assert "saved weights/drawn" in trace.instants_of(f"run {run.model_id}")
    assert [each.details["tokens"] for each in trace.instants if each.name == "sample"] == [3]


def test_a_dead_collector_costs_nothing(traced: LiveServer, collector: Collector, connect: Connect) -> None:
    """Nor does it delay the end of the server, which ``LiveServer`` stops and which must exit with 0."""
    run = create(connect(traced))
    before = train(run, 1)
    lines = len(lines_of(traced))

    collector.close()
    after = train(create(connect(traced)), 1)
    run.save_state("untraced").result()

    assert after == before
    assert not [line for line in lines_of(traced)[lines:] if line["level"] in ("ERROR", "CRITICAL")]
