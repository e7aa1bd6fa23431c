from __future__ import annotations

from urllib.parse import parse_qs

import pytest

from chockstone.console.pages.runs import RunFilter
from support.api.users import User
from support.page_visitor import Markup, PageVisitor

HOSTILE = "<img src=x onerror=alert(1)>'\"{{7*7}}"


def rows(text: str) -> list[str]:
    """The ids of the runs that a page lists."""
    found = Markup(text).having("data-test", "run-row")
    return [str(given["data-href"]).rpartition("/")[2].replace("%3A", ":") for given in found]


async def make_run(user: User, name: str) -> str:
    session = await user.session()
    body = {
        "session_id": session,
        "model_seq_id": 1,
        "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 0},
        "user_metadata": {"name": name},
    }
    return str((await user.result("create_model", body))["model_id"])


async def test_a_user_sees_their_own_runs_and_an_admin_all(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    mine, other = await users["ann"].run(), await users["bob"].run()

    assert rows((await ann.open("/console/runs")).text) == [mine]
    assert set(rows((await root.open("/console/runs")).text)) == {mine, other}
    assert rows((await root.open("/console/runs?owner=bob")).text) == [other]
    assert (await ann.open("/console/runs?owner=bob")).status_code == 403


async def test_words_and_states_narrow_the_list(ann: PageVisitor, users: dict[str, User]) -> None:
    first, _ = await make_run(users["ann"], "belay"), await make_run(users["ann"], "rappel")

    assert rows((await ann.open("/console/runs?query=belay")).text) == [first]
    assert len(rows((await ann.open("/console/runs?state=ready")).text)) == 2
    assert rows((await ann.open("/console/runs?state=lost")).text) == []
    assert "No run matches" in (await ann.open("/console/runs?query=nothing+like+it")).text


async def test_a_page_leads_to_the_next_one(
    ann: PageVisitor, users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chockstone.console.pages.runs._PAGE", 2)
    made = {await users["ann"].run() for _ in range(3)}

    first = await ann.open("/console/runs?sort=created")
    [link] = Markup(first.text).having("data-test", "next-page")
    second = await ann.open(str(link["href"]))

    assert {*rows(first.text), *rows(second.text)} == made
    assert len(rows(second.text)) == 1


async def test_a_name_is_text_whatever_it_is(ann: PageVisitor, users: dict[str, User]) -> None:
    await make_run(users["ann"], HOSTILE)

    answer = await ann.open(f"/console/runs?query={HOSTILE[:5]}&state=<b>&sort=<b>")
    page = Markup((await ann.open("/console/runs")).text)

    assert answer.status_code == 200
    assert HOSTILE in page.text
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert Markup(answer.text).refused_by_policy() == page.refused_by_policy() == []


async def test_htmx_gets_the_table_alone(ann: PageVisitor, users: dict[str, User]) -> None:
    await users["ann"].run()

    answer = await ann.open("/console/runs", **{"HX-Request": "true", "HX-Target": "runs"})

    assert "<html" not in answer.text
    assert len(rows(answer.text)) == 1


async def test_a_cursor_that_was_made_up_is_refused(ann: PageVisitor) -> None:
    assert (await ann.open("/console/runs?cursor=made-up")).status_code == 400


def test_a_heading_sorts_and_sorts_back() -> None:
    chosen = RunFilter(query="a b", sort="-step", cursor="x")

    again, other = parse_qs(chosen.url("step")[1:]), parse_qs(chosen.url("owner")[1:])

    assert again == {"query": ["a b"], "sort": ["step"]}
    assert other["sort"] == ["owner"]
    assert chosen.with_(sort="-last_request") == "?query=a+b"
