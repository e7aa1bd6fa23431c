"""Who may see what: sign-in, sign-out, a wrong key, a revoked key, other users."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from browser.conftest import Made, Visit
from support.console_data import ANN, BEN
from support.live import LiveServer


def test_a_person_signs_in_with_a_key_and_out_again(visit: Visit, made: Made) -> None:
    visitor = visit(None)
    page = visitor.open("/console/runs")
    expect(page).to_have_url(re.compile("/console/sign-in"))  # and sees nothing before

    page.get_by_test_id("sign-in-key").fill(ANN)
    page.get_by_test_id("sign-in-key").press("Enter")

    expect(page.get_by_test_id("page-runs").first).to_be_visible()  # where the person wanted to go
    [cookie] = visitor.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
    assert ANN not in cookie["value"]
    assert ANN not in page.url
    page.get_by_test_id("sign-out").click()
    expect(page.get_by_test_id("sign-in-key")).to_be_visible()
    assert visitor.cookies() == []
    page.goto("/console/runs")
    expect(page.get_by_test_id("sign-in-key")).to_be_visible()


def test_a_wrong_key_is_refused_with_a_reason_and_not_shown_again(visit: Visit) -> None:
    visitor = visit(None)
    visitor.expect_complaint("status of 401")
    page = visitor.open("/console/sign-in")

    page.get_by_test_id("sign-in-key").fill("tml-guess")
    page.get_by_test_id("sign-in").click()

    expect(page.get_by_role("alert")).to_contain_text("not known")
    expect(page.get_by_test_id("sign-in-key")).to_have_value("")
    assert "tml-guess" not in page.content()
    assert visitor.cookies() == []


def test_revoking_a_key_ends_its_sessions(live: LiveServer, visit: Visit) -> None:
    with live.http(ANN) as http:
        created = http.post("keys", json={"user_id": "cat", "note": "laptop"}).raise_for_status().json()
        visitor = visit(created["key"])
        visitor.expect_complaint("status of 401")
        expect(visitor.open("/console").get_by_test_id("page-overview").first).to_be_visible()

        http.delete(f"keys/{created['key_id']}").raise_for_status()

    expect(visitor.page.get_by_test_id("sign-in-key")).to_be_visible()  # the open page leads there by itself


def test_another_users_things_are_not_there(live: LiveServer, visit: Visit, made: Made) -> None:
    visitor = visit(BEN)
    visitor.expect_complaint("status of 40[34]")
    mine, others = visitor.another_page(), visitor.page

    for path in ("/console", "/console/runs", "/console/checkpoints", "/console/storage", "/console/samplers"):
        others.goto(path)
        assert made.run not in others.content(), path
        assert "belay-sft" not in others.content(), path
    mine.goto("/console/runs")
    expect(mine.get_by_test_id("run-link").filter(has_text="bens-secret")).to_be_visible()
    strange = others.goto(f"/console/runs/{made.run}")
    nothing = mine.goto("/console/runs/no-such-run:train:0")
    assert strange is not None
    assert nothing is not None
    assert (strange.status, nothing.status) == (404, 404)
    assert strange.text().replace(made.run, "RUN") == nothing.text().replace("no-such-run:train:0", "RUN")
    for path in ("/console/users", "/console/doctor"):
        refused = others.goto(path)
        assert refused is not None
        assert refused.status == 403, path
    compared = others.goto(f"/console/compare?run={made.run}&run={made.ben_run}")
    assert compared is not None
    assert "belay-sft" not in compared.text()


def test_a_pages_live_stream_and_parts_need_the_session(live: LiveServer, visit: Visit, made: Made) -> None:
    page = visit(None).page

    for path in (f"/console/live/runs/{made.run}", "/console/live/overview", f"/console/runs/{made.run}"):
        answer = page.request.get(path, headers={"Accept": "text/event-stream"}, max_redirects=0)
        assert answer.status in (401, 303), path
