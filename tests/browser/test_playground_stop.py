"""A sample of the playground ends when a person stops it or leaves the page, and so does its session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from browser.conftest import Visit
from support.console_data import ANN
from support.live import LiveServer


@contextmanager
def held_worker(live: LiveServer) -> Iterator[None]:
    """The worker computes nothing meanwhile, so that no sample ends by itself."""
    [pid] = [pid for pid in live.workers() if b"backends.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def begin(page: Page) -> None:
    page.get_by_test_id("mode-plain").click()
    page.get_by_test_id("prompt").fill("Once upon a time")
    page.get_by_test_id("run").click()
    expect(page.get_by_test_id("sampling")).to_be_visible()


def open_samplers(live: LiveServer) -> list[str]:
    with live.http(ANN) as http:
        return [each["sampling_session_id"] for each in http.get("samplers").raise_for_status().json()["samplers"]]


def wait_for(live: LiveServer, *, count: int) -> None:
    """Until this many sampling sessions are open; each answer of the server is one look."""
    for _ in range(3000):
        if len(open_samplers(live)) == count:
            return
    raise AssertionError(f"there are {open_samplers(live)}, not {count}")


def test_stop_cancels_the_sample_and_ends_its_session(visit: Visit, live: LiveServer) -> None:
    page = visit(ANN).open("/console/playground")
    before = len(open_samplers(live))

    with held_worker(live):
        begin(page)
        wait_for(live, count=before + 1)
        page.get_by_test_id("stop").click()

        expect(page.get_by_test_id("stopped")).to_be_visible()
        expect(page.get_by_test_id("stop")).to_be_hidden()
        wait_for(live, count=before)


def test_leaving_the_page_cancels_the_sample_and_ends_its_session(visit: Visit, live: LiveServer) -> None:
    page = visit(ANN).open("/console/playground")
    before = len(open_samplers(live))

    with held_worker(live):
        begin(page)
        wait_for(live, count=before + 1)
        page.goto("/console/checkpoints")

        wait_for(live, count=before)
