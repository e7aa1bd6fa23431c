"""What holds on every page: accessible in both themes, fits a phone, strict headers, no script or style in the page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from browser.conftest import HOSTILE, Made, Visit
from support.browser import PHONE, Theme, accessibility_violations, overflow_of
from support.console_data import ANN
from support.live import LiveServer

PAGES = {
    "overview": "/console",
    "runs": "/console/runs",
    "run": "/console/runs/{run}",
    "compare": "/console/compare?run={run}&run={ben_run}",
    "checkpoints": "/console/checkpoints",
    "playground": "/console/playground",
    "storage": "/console/storage",
    "samplers": "/console/samplers",
    "users": "/console/users",
    "audit": "/console/audit",
    "doctor": "/console/doctor",
}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "font-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}


def path_of(page: str, made: Made) -> str:
    return PAGES[page].format(run=made.run, ben_run=made.ben_run)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(visit: Visit, made: Made, theme: Theme) -> None:
    visitor = visit(None, theme=theme)
    found = {"sign-in": accessibility_violations(visitor.open("/console/sign-in"))}
    visitor.sign_in(ANN)

    for name in PAGES:
        page = visitor.open(path_of(name, made))
        expect(page.get_by_test_id(f"page-{name}").first).to_be_visible()
        found[name] = accessibility_violations(page)

    assert {name: violations for name, violations in found.items() if violations} == {}


def test_no_page_scrolls_sideways_on_a_phone(visit: Visit, made: Made) -> None:
    visitor = visit(ANN, size=PHONE)

    wide = {name: overflow_of(visitor.open(path_of(name, made))) for name in PAGES}

    assert {name: elements for name, elements in wide.items() if elements} == {}


def test_pages_have_no_inline_script_or_style_and_a_strict_policy(visit: Visit, made: Made) -> None:
    visitor = visit(ANN)
    for name in PAGES:
        answer = visitor.page.request.get(path_of(name, made))
        text = answer.text()

        assert answer.status == 200, name
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy == POLICY, name
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] in ("no-referrer", "same-origin")
        assert answer.headers["cache-control"] == "no-store"
        assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", text), name
        assert not re.findall(r"<style|\sstyle=|\son\w+=\"|javascript:", text.replace(HOSTILE, "")), name


def test_assets_are_cached_and_come_from_this_server(visit: Visit, live: LiveServer) -> None:
    visitor = visit(ANN)
    visitor.open("/console")
    assets = visitor.page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")

    assert assets
    assert all(asset.startswith(live.url) for asset in assets)
