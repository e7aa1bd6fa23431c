"""Checkpoints: a person deletes one by mistake, and undoes it."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from browser.conftest import Made, Visit
from support.console_data import ANN
from support.live import LiveServer


def row_of(page: Page, path: str) -> Locator:
    return page.locator(f'[data-test="checkpoint"][data-path="{path}"]')


def names_on(live: LiveServer, run_id: str) -> set[str]:
    with live.http(ANN) as http:
        found = http.get(f"training_runs/{run_id}/checkpoints").raise_for_status().json()["checkpoints"]
    return {each["checkpoint_id"] for each in found}


def test_a_deleted_checkpoint_is_undeleted_on_the_same_page(live: LiveServer, visit: Visit, made: Made) -> None:
    name = made.checkpoints[0]
    path = f"tinker://{made.run}/weights/{name}"
    before = names_on(live, made.run)
    page = visit(ANN).open(f"/console/checkpoints?run={made.run}")
    row_of(page, path).get_by_test_id("checkpoint-summary").click()

    row_of(page, path).get_by_test_id("delete").click()

    deleted = page.locator(f'[data-test="checkpoint-deleted"][data-path="{path}"]')
    expect(deleted).to_contain_text(name)
    assert names_on(live, made.run) == before - {f"weights/{name}"}
    deleted.get_by_test_id("undo").click()
    expect(row_of(page, path)).to_be_visible()
    assert names_on(live, made.run) == before


def test_the_command_that_loads_a_checkpoint_is_copied(visit: Visit, made: Made) -> None:
    path = f"tinker://{made.run}/weights/{made.checkpoints[-1]}"
    page = visit(ANN).open(f"/console/checkpoints?run={made.run}")
    row_of(page, path).get_by_test_id("checkpoint-summary").click()

    row_of(page, path).get_by_label("Copy the path").click()

    expect(page.get_by_test_id("toast")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == path


def test_an_expiry_is_set_and_shown(live: LiveServer, visit: Visit, made: Made) -> None:
    path = f"tinker://{made.run}/weights/{made.checkpoints[-1]}"
    page = visit(ANN).open(f"/console/checkpoints?run={made.run}")
    row_of(page, path).get_by_test_id("checkpoint-summary").click()

    row_of(page, path).get_by_test_id("ttl-amount").fill("3")
    row_of(page, path).get_by_test_id("expire").click()

    expect(row_of(page, path).locator("[data-label=Expires] time")).to_be_visible()
    with live.http(ANN) as http:
        answer = http.get(f"training_runs/{made.run}/checkpoints/weights/{made.checkpoints[-1]}").json()
    assert answer["expires_at"] is not None
