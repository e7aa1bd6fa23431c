"""Streaming: what pages of the console that are open cost the server.

One page is open in Chromium; the others are connections to the same live streams, with the same cookies, whose events
are read and dropped: fifty tabs would load the machine more than the server does.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.live.client import batch_of, new_run, session, step
from benchmarks.live.server import LiveServer, connect
from benchmarks.observability.browsing import browser_context
from benchmarks.observability.cpu_clock import cpu_seconds
from benchmarks.observability.scale import RANK
from benchmarks.observability.setup import Setup

NONE = "no page"
ONE = "one idle page"
MANY = "{count} idle pages"
TRAINING = "training, no page"
TRAINING_MANY = "training, {count} pages of the run"
_PROBE_SECONDS = 0.02
_BUFFER = 65_536


def many(count: int) -> str:
    return MANY.format(count=count)


def measure_streams(context: Context, setup: Setup) -> Rows:
    scale, model = setup.scale, setup.model
    context.describe(f"{model.title} model, {scale.pages} pages")
    with ExitStack() as stack:
        server = stack.enter_context(setup.new_server("streams"))
        run = new_run(stack.enter_context(session(server.url)), model.name, rank=RANK)
        batch = batch_of(model.draw(scale.sequences, scale.tokens + 1, seed=5))
        step(run, batch)
        run_id = run.model_id
        browser = stack.enter_context(browser_context())

        def idle(pages: int) -> Metrics:
            with _open_pages(browser, server, f"/console/runs/{run_id}", pages):
                return _watch(server, scale.watch_seconds)

        def training(pages: int) -> Metrics:
            with _open_pages(browser, server, f"/console/runs/{run_id}", pages), _trained(lambda: step(run, batch)):
                return _watch(server, scale.watch_seconds)

        return context.run_rounds(
            {
                NONE: lambda: idle(0),
                ONE: lambda: idle(1),
                many(scale.pages): lambda: idle(scale.pages),
                TRAINING: lambda: training(0),
                TRAINING_MANY.format(count=scale.pages): lambda: training(scale.pages),
            },
            repeats=scale.watches,
        )


@contextmanager
def _open_pages(browser: Any, server: LiveServer, path: str, count: int) -> Iterator[None]:  # Any: of Playwright
    """One page in the browser, and the live streams of the others."""
    if not count:
        yield
        return
    with ExitStack() as stack:
        page = browser.new_page()
        stack.callback(page.close)
        streams: list[Any] = []
        page.on("request", lambda request: streams.append(request) if request.resource_type == "eventsource" else None)
        page.goto(server.url + path, wait_until="load")
        deadline = perf_counter() + 10
        while not streams:
            if perf_counter() > deadline:
                raise RuntimeError(f"the page {path} opens no live stream")
            page.wait_for_timeout(20)
        for number in range(count - 1):
            request = streams[number % len(streams)]
            stack.enter_context(_stream(request.url, request.all_headers()))
        page.wait_for_timeout(300)  # for the first events
        yield


@contextmanager
def _stream(url: str, headers: Mapping[str, str]) -> Iterator[None]:
    """A connection whose events are read and dropped."""
    address = urlsplit(url)
    path = f"{address.path}?{address.query}" if address.query else address.path
    kept = {name: value for name, value in headers.items() if name in ("cookie", "accept")}
    lines = [f"GET {path} HTTP/1.1", f"Host: {address.netloc}", *(f"{name}: {value}" for name, value in kept.items())]
    connection = socket.create_connection((address.hostname or "", address.port or 80))
    connection.sendall("\r\n".join((*lines, "", "")).encode())
    first = connection.recv(_BUFFER)
    if b" 200 " not in first[:20]:
        connection.close()
        raise RuntimeError(f"{path} answered {first[:100]!r}")
    thread = threading.Thread(target=_drop, args=(connection,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        thread.join()
        connection.close()


def _drop(connection: socket.socket) -> None:
    while connection.recv(_BUFFER):
        pass


@contextmanager
def _trained(train: Any) -> Iterator[None]:
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            train()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _watch(server: LiveServer, seconds: float) -> Metrics:
    """CPU of the process that serves, as a share of one core; then the answers of ``healthz``, for as long again."""
    began, began_cpu = perf_counter(), cpu_seconds(server)
    sleep(seconds)
    used = (cpu_seconds(server) - began_cpu) / (perf_counter() - began)
    connection, answers, began = connect(server.url), [], perf_counter()
    while perf_counter() < began + seconds:
        asked = perf_counter()
        connection.request("GET", "/api/v1/healthz")
        connection.getresponse().read()
        answers.append(perf_counter() - asked)
        sleep(_PROBE_SECONDS)
    connection.close()
    return {"cpu": used, "healthz_p99": _percentile(answers, 0.99)}


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, round(len(values) * share))]
