"""Text that users choose stays text, on every page that shows it. Text of models: test_playground.py."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from browser.conftest import HOSTILE, Made, Visit
from browser.test_every_page import PAGES, path_of
from support.console_data import ANN
from support.live import LiveServer


def assert_not_run(page: Page) -> None:
    assert "owned" not in page.title()
    assert page.locator("img[src=x]").count() == 0


def test_markup_in_metadata_stays_text_on_every_page(visit: Visit, made: Made) -> None:
    visitor = visit(ANN)

    for name in PAGES:
        assert_not_run(visitor.open(path_of(name, made)))

    page = visitor.open(path_of("run", made))
    expect(page.get_by_test_id("metadata")).to_contain_text(HOSTILE)


def test_markup_in_search_fields_and_urls_stays_text(visit: Visit, made: Made) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint("status of (404|422|400)")

    for path in (
        "/console/runs?query={}",
        "/console/runs?owner={}",
        "/console/checkpoints?q={}",
        "/console/checkpoints?owner={}",
        "/console/audit?run={}",
        "/console/audit?user={}",
        "/console/compare?run={}",
        "/console/playground?path={}",
        "/console/runs/{}",
        "/console/sign-in?next={}",
    ):
        page = visitor.page
        page.goto(path.format(page.evaluate("text => encodeURIComponent(text)", HOSTILE)))
        assert_not_run(page)


def test_names_that_pages_show_cannot_hold_markup(live: LiveServer, made: Made) -> None:
    point = {"step": 1, "values": {"<b>reward</b>": 1.0}}
    with live.http(ANN) as http:
        series = http.post(f"training_runs/{made.run}/metrics", json={"points": [point]})
        save = http.post("save_weights", json={"model_id": made.run, "path": "<b>name</b>", "seq_id": 10_000})

    assert (series.status_code, save.status_code) == (422, 400), (series.text, save.text)
