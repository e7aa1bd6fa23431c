from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from chockstone.trainers.reports.reports import StepRecord
from chockstone.trainers.reports.run_metrics import RunMetrics
from chockstone.wire.messages.metrics import MAX_POSTED_VALUES, MAX_SERIES


class Taken(BaseHTTPRequestHandler):
    """Answers with the next of ``statuses``, and with 200 after the last."""

    statuses: ClassVar[list[int]] = []
    bodies: ClassVar[list[Any]] = []
    paths: ClassVar[list[str]] = []
    keys: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.paths.append(self.path)
        self.keys.append(self.headers["X-API-Key"])
        status = self.statuses.pop(0) if self.statuses else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server(*statuses: int) -> Iterator[str]:
    for each in (Taken.bodies, Taken.paths, Taken.keys):
        each.clear()
    Taken.statuses[:] = statuses
    with ThreadingHTTPServer(("127.0.0.1", 0), Taken) as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()


def record(step: int, **metrics: float) -> StepRecord:
    return StepRecord(step, {"reward/mean": step / 2, **metrics})


def point(step: int) -> dict[str, Any]:
    return {"step": step, "values": {"reward/mean": step / 2}}


def test_each_step_is_reported_to_the_run() -> None:
    with server() as url:
        report = RunMetrics.of_run("s:train:0", base_url=url, api_key="tml-x")
        report.resume(0)
        report.record(StepRecord(1, {"reward/mean": 0.5, "server/loss:sum": 3.0, "bad": math.nan, "a b": 1.0}))
        report.evaluated(1, {"accuracy": 0.25})
        report.event("anything")
        report.close()

    assert Taken.paths == ["/api/v1/training_runs/s:train:0/metrics"] * 2
    assert Taken.keys == ["tml-x"] * 2
    assert Taken.bodies == [
        {"points": [{"step": 1, "values": {"reward/mean": 0.5}}]},
        {"points": [{"step": 1, "values": {"evaluation/accuracy": 0.25}}]},
    ]


def test_a_server_that_is_away_gets_the_points_later() -> None:
    with server(503, 429) as url:
        report = RunMetrics.of_run("s:train:0", base_url=url, api_key="tml-x")
        for step in (1, 2, 3):
            report.record(record(step))

    assert Taken.bodies[-1] == {"points": [point(1), point(2), point(3)]}
    report.record(record(4))  # the server is gone: nothing is raised
    report.close()


def test_points_for_a_server_that_stays_away_are_bounded() -> None:
    sent: list[list[dict[str, Any]]] = []
    is_away = True

    def post(body: bytes) -> None:
        sent.append(json.loads(body)["points"])
        if is_away:
            raise ConnectionRefusedError

    report = RunMetrics(post)
    for step in range(1, 1500):
        report.record(record(step))
    sent.clear()
    is_away = False
    report.close()

    assert [each["step"] for points in sent for each in points] == [*range(500, 1500)]
    assert max(map(len, sent)) * MAX_SERIES <= MAX_POSTED_VALUES  # the server takes each request


@pytest.mark.parametrize("status", [404, 405, 401, 403, 422, 302])
def test_a_server_without_such_a_route_is_asked_once(status: int) -> None:
    with server(status) as url:
        report = RunMetrics.of_run("s:train:0", base_url=url, api_key="tml-x")
        for step in (1, 2):
            report.record(record(step))
        report.close()

    assert len(Taken.bodies) == 1
