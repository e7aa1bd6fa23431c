from __future__ import annotations

import re

from chockstone.api.context import Context
from support.api.users import KEYS
from support.page_visitor import Markup, PageVisitor
from support.served import Served


def secret_of(text: str) -> str:
    [secret] = re.findall(r'data-test="secret">([^<]+)<', text)
    return str(secret)


async def test_a_created_key_works_and_is_shown_once(root: PageVisitor, served: Served, context: Context) -> None:
    created = await root.post("/console/users/keys", {"user": "carol", "note": "laptop <b>"})

    assert created.status_code == 200, created.text
    key = secret_of(created.text)
    answer = await served.http.get("checkpoints", headers={"X-API-Key": key})
    assert answer.status_code == 200
    page = await root.open("/console/users")
    assert key not in page.text
    assert f"tml-…{key[-4:]}" in page.text
    assert "laptop <b>" in Markup(page.text).text
    assert Markup(page.text).refused_by_policy() == []


async def test_a_revoked_key_is_refused_and_ends_its_console(root: PageVisitor, served: Served) -> None:
    key = secret_of((await root.post("/console/users/keys", {"user": "carol"})).text)
    async with PageVisitor(served.app) as carol:
        await carol.sign_in(key)
        page = await root.open("/console/users")
        [revoke] = re.findall(r'hx-post="(/console/users/keys/\d+/revoke)"', page.text)
        assert "cannot be undone" in page.text

        revoked = await root.post(revoke)

        assert "Revoked key" in revoked.text
        assert (await served.http.get("checkpoints", headers={"X-API-Key": key})).status_code == 401
        assert (await carol.open("/console/checkpoints")).status_code == 303
        assert (await root.post(revoke)).status_code == 404


async def test_users_who_are_no_admins_are_refused_and_see_no_link(ann: PageVisitor, context: Context) -> None:
    assert (await ann.open("/console/users")).status_code == 403
    assert (await ann.post("/console/users/keys", {"user": "ann"})).status_code == 403
    assert (await ann.post("/console/users/keys/1/revoke")).status_code == 403
    assert await context.catalog.keys.list() == ()
    assert "nav-users" not in (await ann.open("/console")).text


async def test_a_key_is_not_made_by_a_foreign_page_or_without_a_user(root: PageVisitor, context: Context) -> None:
    forged = await root.post("/console/users/keys", {"user": "eve"}, but={"X-Console-Token": None})
    empty = await root.post("/console/users/keys", {"user": " "})
    bad = await root.post("/console/users/keys", {"user": "<script>", "note": "x" * 501})

    assert (forged.status_code, empty.status_code, bad.status_code) == (403, 400, 400)
    assert await context.catalog.keys.list() == ()


async def test_keys_in_the_settings_are_listed_without_a_button(root: PageVisitor) -> None:
    page = Markup((await root.open("/console/users")).text)

    assert {given["data-user"] for given in page.having("data-test", "key")} == set(KEYS)
    assert not page.having("data-test", "revoke")


async def test_a_server_without_keys_says_what_the_first_key_does(open_server: Served) -> None:
    async with PageVisitor(open_server.app) as visitor:
        page = await visitor.open("/console/users")

        assert "The first key closes it" in Markup(page.text).text
        assert "No API keys" in page.text


async def test_the_first_key_is_shown_although_it_closes_the_server(open_server: Served) -> None:
    async with PageVisitor(open_server.app) as visitor:
        await visitor.open("/console/users")

        created = await visitor.post("/console/users/keys", {"user": "local"})

        assert created.status_code == 200, created.text
        assert "Sign in with this key" in created.text
        assert (await visitor.open("/console/users")).status_code == 303
        assert (await visitor.sign_in(secret_of(created.text))).status_code == 303
        assert (await visitor.open("/console/checkpoints")).status_code == 200
