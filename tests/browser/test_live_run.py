"""A run's page while the run trains, and while its server dies and is recovered."""

from __future__ import annotations

import threading
from pathlib import Path

from playwright.sync_api import expect

from browser.conftest import FLAGS, Visit
from support.browser import PATIENCE_MS
from support.console_data import ANN, MODEL, Trained, apart, create, finetune, post_points, service
from support.live import LiveServer

POINTS_OF_A_STEP = 3  # of forward_backward, of optim_step, and the script's own


class Script:
    """A training script in a thread. It waits before each step until the test lets it take the step."""

    def __init__(self, server: LiveServer, *, name: str) -> None:
        self._server = server
        self._steps = threading.Semaphore(0)
        self._created = threading.Event()
        self.is_over = threading.Event()
        self.trained: Trained | None = None
        self._work = apart(lambda: self._run(name))

    def _run(self, name: str) -> None:
        with service(self._server, ANN) as client:
            self.trained = create(client, rank=4, name=name)
            self._created.set()
            count = 0
            while self._steps.acquire() and not self.is_over.is_set():
                finetune(self.trained, 1, start=count)
                count += 1
                post_points(self._server, ANN, self.trained.run_id, count, reward=count / 10)

    @property
    def run_id(self) -> str:
        assert self._created.wait(120)
        assert self.trained is not None
        return self.trained.run_id

    def step(self, count: int = 1) -> None:
        self._steps.release(count)

    def end(self) -> None:
        self.is_over.set()
        self._steps.release()
        self._work.result(timeout=120)


def test_the_loss_of_a_training_script_appears_without_a_reload(live: LiveServer, visit: Visit) -> None:
    script = Script(live, name="live")
    page = visit(ANN).open(f"/console/runs/{script.run_id}")
    page.evaluate("window.isTheSamePage = true")

    script.step(2)

    expect(page.get_by_test_id("run-step")).to_have_text("2")
    script.step(3)
    expect(page.get_by_test_id("run-step")).to_have_text("5")
    expect(page.get_by_test_id("curves")).to_have_attribute("data-points", str(5 * POINTS_OF_A_STEP))
    expect(page.locator("[data-chart=reward]")).to_be_visible()
    assert page.evaluate("window.isTheSamePage") is True
    script.end()


def test_a_page_survives_a_killed_server_and_shows_the_recovery(
    visit: Visit, models: dict[str, Path], tmp_path: Path
) -> None:
    with LiveServer({MODEL: models[MODEL]}, tmp_path, *FLAGS, key=ANN) as server:
        script = Script(server, name="killed")
        visitor = visit(ANN, server=server)
        visitor.expect_complaint(
            "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
        )
        page = visitor.open(f"/console/runs/{script.run_id}")
        page.evaluate("window.isTheSamePage = true")
        script.step(3)
        expect(page.get_by_test_id("run-step")).to_have_text("3")

        server.kill()
        expect(page.locator("[data-live-state]")).to_contain_text("reconnecting", ignore_case=True)
        server.start()
        script.step(2)

        expect(page.get_by_test_id("run-step")).to_have_text("5", timeout=2 * PATIENCE_MS)
        expect(page.locator("[data-live-state]")).to_contain_text("live", ignore_case=True)
        expect(page.get_by_test_id("recovery")).to_have_count(1)
        expect(page.get_by_test_id("recovery")).to_contain_text("identical")
        expect(page.get_by_test_id("curves")).to_have_attribute("data-points", str(5 * POINTS_OF_A_STEP))  # each once
        assert page.evaluate("window.isTheSamePage") is True
        script.end()
