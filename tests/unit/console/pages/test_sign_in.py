from __future__ import annotations

from chockstone.api.context import Context
from chockstone.console.session import COOKIE
from support.api.users import KEYS
from support.page_visitor import Markup, PageVisitor


async def test_a_key_signs_in_and_leads_to_the_page_that_was_asked_for(visitor: PageVisitor) -> None:
    answer = await visitor.sign_in(KEYS["ann"], next_page="/console/runs")

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/runs")
    assert (await visitor.open("/console/session")).json() == {"user": "ann"}


async def test_another_key_is_refused_shown_nowhere_and_reported(visitor: PageVisitor, context: Context) -> None:
    answer = await visitor.sign_in("tml-guess<b>", next_page="https://elsewhere")

    page = Markup(answer.text)
    assert answer.status_code == 401
    assert "not known to this server" in page.text
    assert "tml-guess" not in answer.text
    assert page.having("name", "next")[0]["value"] == "/console"
    assert COOKIE not in visitor.http.cookies
    await context.engine.audit.flush()
    assert "key_refused" in {row.event for row in await context.catalog.audit.list(None)}


async def test_an_empty_key_is_no_attempt(visitor: PageVisitor, context: Context) -> None:
    answer = await visitor.sign_in("  ")

    assert answer.status_code == 401
    assert context.refused_keys._counts == {}


async def test_signing_in_from_another_site_is_refused(visitor: PageVisitor) -> None:
    answer = await visitor.post("/console/sign-in", {"key": KEYS["ann"]}, but={"Origin": "https://elsewhere"})

    assert answer.status_code == 403
    assert COOKIE not in visitor.http.cookies


async def test_signing_out_ends_the_session_of_this_browser(ann: PageVisitor) -> None:
    without = await ann.post("/console/sign-out", but={"X-Console-Token": None})
    answer = await ann.post("/console/sign-out")

    assert without.status_code == 403
    assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/console/sign-in")
    assert (await ann.open("/console")).status_code == 303
