"""Pages of other origins against a browser that is signed in. They are on the same site, so the cookie is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from browser.attacker import AttackerSite, attacker_site
from browser.conftest import Made, Visit
from browser.test_checkpoint_actions import names_on
from support.console_data import ANN
from support.live import LiveServer

ANOTHER_HOST = "request to another host"


@pytest.fixture(scope="module")
def attacker() -> Iterator[AttackerSite]:
    with attacker_site() as site:
        yield site


def delete_url(live: LiveServer, made: Made) -> str:
    return f"{live.url}/console/checkpoints/{made.run}/weights/{made.checkpoints[1]}/delete"


def test_a_form_of_another_origin_changes_nothing(
    live: LiveServer, visit: Visit, made: Made, attacker: AttackerSite
) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint(f"{ANOTHER_HOST}|status of 403")
    before = names_on(live, made.run)
    form = f'<form method="post" action="{delete_url(live, made)}"><button>Win a prize</button></form>'

    visitor.open(attacker.serve(form)).get_by_text("Win a prize").click()

    expect(visitor.page.locator("body")).to_contain_text("did not come from a page of this console")
    assert names_on(live, made.run) == before


def test_a_script_of_another_origin_changes_and_reads_nothing(
    live: LiveServer, visit: Visit, made: Made, attacker: AttackerSite
) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint(f"{ANOTHER_HOST}|status of 403|blocked by CORS|ERR_FAILED|ERR_BLOCKED")
    before = names_on(live, made.run)
    page = visitor.open(attacker.serve("<p>hello</p>"))

    sent, read = (
        page.evaluate(
            """([url, options]) => fetch(url, {credentials: "include", ...options})
                 .then(answer => answer.text(), error => "refused")""",
            [url, options],
        )
        for url, options in (
            (delete_url(live, made), {"method": "POST", "mode": "no-cors"}),
            (f"{live.url}/console/runs", {}),
        )
    )

    assert (sent, read) == ("refused", "refused")
    assert names_on(live, made.run) == before


def test_the_console_cannot_be_framed(live: LiveServer, visit: Visit, attacker: AttackerSite) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint(f"{ANOTHER_HOST}|status of 403|frame-ancestors|Refused to (display|frame)|Framing|frame")
    page = visitor.open(attacker.serve(f'<iframe src="{live.url}/console"></iframe>'))

    framed = page.frame_locator("iframe").get_by_test_id("page-overview")

    expect(framed).to_have_count(0)
    assert "chrome-error" in page.frames[-1].url


def test_a_link_from_another_site_opens_the_page_signed_in(
    live: LiveServer, visit: Visit, made: Made, attacker: AttackerSite
) -> None:
    visitor = visit(ANN)
    visitor.expect_complaint(ANOTHER_HOST)
    link = f'<a href="{live.url}/console/checkpoints">our checkpoints</a>'
    foreign = attacker.serve(link).replace("127.0.0.1", "localhost")

    visitor.open(foreign).get_by_text("our checkpoints").click()

    expect(visitor.page.get_by_test_id("page-checkpoints").first).to_be_visible()
