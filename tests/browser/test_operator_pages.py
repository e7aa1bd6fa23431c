"""Storage, users, audit and doctor: what operators do there, by clicks and keys."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from browser.conftest import Made, Visit
from support.console_data import ANN, BEN, apart, create, finetune, service
from support.live import LiveServer


def policies(live: LiveServer, key: str) -> dict[str, object]:
    with live.http(key) as http:
        return {each["scope"]: each["policy"] for each in http.get("policies").raise_for_status().json()["policies"]}


def test_a_policy_is_previewed_applied_and_removed(visit: Visit, live: LiveServer, made: Made) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint("400")
    page = visitor.open("/console/storage")

    page.get_by_test_id("edit-run").click()
    page.get_by_test_id("scope-name").fill(made.run)
    page.get_by_test_id("keep-last").fill("many")
    page.get_by_test_id("preview-policy").click()
    expect(page.get_by_test_id("form-error")).to_contain_text("'many' is not a whole number")
    page.get_by_test_id("keep-last").fill("1")
    page.get_by_test_id("policy-pinned").fill(", ".join(made.checkpoints))
    page.get_by_test_id("preview-policy").click()
    expect(page.get_by_test_id("form-error")).to_have_count(0)
    expect(page.get_by_test_id("preview")).to_contain_text("would remove no checkpoint")
    assert policies(live, ANN) == {}
    page.get_by_test_id("apply-policy").click()

    row = page.locator(f'[data-test="policy"][data-scope="run:{made.run}"]')
    expect(row).to_contain_text("keep the last 1")
    assert policies(live, ANN) == {f"run:{made.run}": {"keep_last": 1, "pinned": list(made.checkpoints)}}
    row.get_by_test_id("remove-policy").click()
    page.get_by_test_id("confirm-remove-policy").click()
    expect(row).to_have_count(0)
    assert policies(live, ANN) == {}


def test_what_was_deleted_is_undeleted_from_the_trash(visit: Visit, live: LiveServer) -> None:
    def save() -> str:
        with service(live, BEN) as client:
            run = finetune(create(client, rank=4), 1, save_every=1)
            return next(iter(run.saved.values()))

    path = apart(save).result(timeout=200)
    with live.http(BEN) as http:
        run_id, kind, name = path.removeprefix("tinker://").split("/")
        http.delete(f"training_runs/{run_id}/checkpoints/{kind}/{name}").raise_for_status()

    page = visit(BEN).open("/console/storage")
    page.locator(f'[data-test="trash-entry"][data-path="{path}"]').get_by_test_id("undelete").click()

    expect(page.get_by_test_id("trash")).to_contain_text(f"Undeleted {path}")
    page.goto("/console/checkpoints")
    expect(page.locator(f'[data-test="checkpoint"][data-path="{path}"]')).to_be_visible()


def create_key(page: Page, user: str) -> str:
    page.get_by_test_id("key-user").fill(user)
    page.get_by_test_id("key-note").fill("laptop")
    page.keyboard.press("Enter")
    return page.get_by_test_id("secret").inner_text()


def test_a_key_is_created_used_and_revoked(visit: Visit, live: LiveServer) -> None:
    page = visit(ANN).open("/console/users")

    key = create_key(page, "carol")
    expect(page.get_by_test_id("key-user")).to_have_value("")
    carol = visit(key)
    expect(carol.open("/console/checkpoints").get_by_test_id("user")).to_have_text("carol")
    page.locator('[data-test="key"][data-user="carol"]').get_by_test_id("revoke").click()
    page.get_by_test_id("confirm").click()

    expect(page.locator('[data-test="key"][data-user="carol"]')).to_contain_text("revoked")
    with live.http(key) as http:
        assert http.get("checkpoints").status_code == 401
    carol.page.goto("/console/checkpoints")
    expect(carol.page.get_by_test_id("sign-in-key")).to_be_visible()


def test_a_user_without_a_name_is_refused_in_the_form(visit: Visit) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint("400")
    page = visitor.open("/console/users")

    create = page.get_by_test_id("key-user")
    create.fill("not a user!")
    page.keyboard.press("Enter")

    expect(page.get_by_test_id("form-error")).to_contain_text("no key is created")
    expect(page.get_by_test_id("toast")).to_have_count(0)


def test_the_audit_is_filtered_without_reloading(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/audit")

    page.get_by_test_id("filter-run").fill(made.run)
    page.get_by_test_id("filter-action").select_option("checkpoint_saved")

    expect(page).to_have_url(re.compile("action=checkpoint_saved"))
    expect(page.locator('[data-test="audit-entry"]:not([data-event="checkpoint_saved"])')).to_have_count(0)
    expect(page.get_by_test_id("audit-entry").first).to_be_visible()


def test_the_doctor_shows_its_findings_when_the_examination_ends(visit: Visit, made: Made) -> None:
    page = visit(ANN).open("/console/doctor")

    expect(page.get_by_test_id("verdict")).to_be_visible()
    page.get_by_test_id("examine").click()
    expect(page.get_by_test_id("verdict")).to_be_visible()


def test_a_checkpoint_is_pinned_published_and_found_by_its_name(visit: Visit, live: LiveServer, made: Made) -> None:
    path = f"tinker://{made.run}/weights/{made.checkpoints[1]}"
    page = visit(ANN).open(f"/console/checkpoints?run={made.run}")
    row = page.locator(f'[data-test="checkpoint"][data-path="{path}"]')

    row.get_by_test_id("checkpoint-summary").click()
    row.get_by_test_id("pin").click()
    expect(row.get_by_test_id("checkpoint-summary")).to_contain_text("Pinned")
    row.get_by_test_id("publish").click()
    page.get_by_test_id("confirm").click()
    expect(row.get_by_test_id("checkpoint-summary")).to_contain_text("Published")
    row.get_by_test_id("verify").click()
    expect(row).to_contain_text("every digest is right")
    visitor = visit(BEN)
    theirs = visitor.open("/console/checkpoints?whose=public")
    theirs.get_by_test_id("search").fill(made.checkpoints[1])
    expect(theirs.locator(f'[data-test="checkpoint"][data-path="{path}"]')).to_be_visible()
    expect(theirs.get_by_test_id("delete")).to_have_count(0)
    row.get_by_test_id("publish").click()
    page.get_by_test_id("confirm").click()
    expect(row.get_by_test_id("checkpoint-summary")).not_to_contain_text("Published")
    row.get_by_test_id("pin").click()
    expect(row.get_by_test_id("checkpoint-summary")).not_to_contain_text("Pinned")


def test_checkpoints_are_walked_and_opened_from_the_keyboard(visit: Visit, made: Made) -> None:
    page = visit(ANN).open(f"/console/checkpoints?run={made.run}")

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    expect(page.get_by_test_id("checkpoint").nth(1).get_by_test_id("actions")).to_be_visible()
    expect(page.get_by_test_id("checkpoint").nth(0).get_by_test_id("actions")).to_be_hidden()
