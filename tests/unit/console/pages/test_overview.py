from __future__ import annotations

from chockstone.api.context import Context
from chockstone.console.pages.overview import PARTS
from support.api.users import User
from support.page_visitor import Markup, PageVisitor
from support.served import Served


async def test_a_server_without_runs_says_how_to_connect(ann: PageVisitor) -> None:
    page = Markup((await ann.open("/console")).text)

    assert "export TINKER_BASE_URL=http://localhost" in page.text
    assert page.having("data-test", "worker")


async def test_a_user_sees_their_own_runs_and_an_admin_all(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    mine, other = await users["ann"].run(), await users["bob"].run()

    own, all_runs = (await ann.open("/console")).text, (await root.open("/console")).text

    assert mine in own.replace("%3A", ":") and other not in own.replace("%3A", ":")
    assert mine in all_runs.replace("%3A", ":") and other in all_runs.replace("%3A", ":")


async def test_what_needs_a_person_is_said_first(root: PageVisitor, users: dict[str, User], context: Context) -> None:
    run_id = await users["ann"].run()
    run = context.engine.runs.get(run_id)
    assert run is not None
    run.hold("start the server with <b>--on-journal-loss continue</b>")

    page = Markup((await root.open("/console")).text)

    assert page.having("data-test", "problem")
    assert "<b>--on-journal-loss continue</b>" in page.text


async def test_the_stream_sends_every_part_of_the_page(
    ann: PageVisitor, users: dict[str, User], context: Context
) -> None:
    await users["ann"].run()
    page = Markup((await ann.open("/console")).text)
    names = {given["data-part"] for given in page.having("data-part")}
    assert page.having("data-live", "/console/live/overview")

    context.engine.shutdown.begin()
    refused = await ann.open("/console/live/overview")

    assert refused.status_code == 503
    assert names == set(PARTS)


async def test_a_server_without_keys_names_a_key_that_works(open_server: Served) -> None:
    async with PageVisitor(open_server.app) as visitor:
        page = Markup((await visitor.open("/console")).text)

    assert "export TINKER_API_KEY=tml-local" in page.text
