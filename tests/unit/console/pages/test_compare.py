from __future__ import annotations

from urllib.parse import urlencode

from chockstone.console.pages.compare import MOST_RUNS, _short_path
from support.api.users import MODEL, User
from support.page_visitor import Markup, PageVisitor


def page_of(*run_ids: str) -> str:
    return "/console/compare?" + urlencode([("run", run_id) for run_id in run_ids])


async def test_the_chosen_runs_are_compared_and_others_are_offered(ann: PageVisitor, users: dict[str, User]) -> None:
    first, second, third = [await users["ann"].run() for _ in range(3)]

    page = Markup((await ann.open(page_of(first, second, first))).text)

    assert [given["data-compare-run"] for given in page.having("data-compare-run")] == [first, second]
    [offered] = page.having("data-test", "offered-run")
    assert str(offered["href"]).endswith(urlencode({"run": third}))


async def test_without_runs_the_page_says_what_to_do(ann: PageVisitor) -> None:
    page = Markup((await ann.open("/console/compare")).text)

    assert "Choose runs to compare" in page.text
    assert page.refused_by_policy() == []


async def test_another_users_run_is_neither_compared_nor_offered(ann: PageVisitor, users: dict[str, User]) -> None:
    other = await users["bob"].run()

    assert (await ann.open(page_of(other))).status_code == 404
    assert not Markup((await ann.open("/console/compare")).text).having("data-test", "offered-run")


async def test_at_most_as_many_runs_as_there_are_colours(ann: PageVisitor, users: dict[str, User]) -> None:
    session = await users["ann"].session()
    made = [await users["ann"].run(session) for _ in range(MOST_RUNS + 1)]

    page = Markup((await ann.open(page_of(*made))).text)

    assert len(page.having("data-compare-run")) == MOST_RUNS
    assert (await ann.open(page_of(*(["x"] * 101)))).status_code == 400


async def test_words_narrow_what_is_offered(ann: PageVisitor, users: dict[str, User]) -> None:
    first, second = await users["ann"].run(), await users["ann"].run()

    answer = await ann.open(f"/console/compare/offered?run={first}&query={second[:8]}")

    assert len(Markup(answer.text).having("data-test", "offered-run")) == 1
    assert "<html" not in answer.text


async def test_settings_in_which_runs_differ_are_listed(ann: PageVisitor, users: dict[str, User]) -> None:
    user = users["ann"]
    made = []
    for rank in (4, 8):
        body = {
            "session_id": await user.session(),
            "model_seq_id": 1,
            "base_model": MODEL,
            "lora_config": {"rank": rank, "seed": 0},
            "user_metadata": {"note": "<b>same</b>"},
        }
        made.append(str((await user.result("create_model", body))["model_id"]))

    page = Markup((await ann.open(page_of(*made))).text)

    assert "Differences" in page.text and "rank 4 8" in page.text
    assert "<b>same</b>" not in page.text  # the same in both


def test_a_parent_is_short() -> None:
    assert _short_path("tinker://3f2a9c1b-0000:train:1/weights/first") == "3f2a9c1b:1/weights/first"
