from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.console.pages.storage import fill_form, read_policy, read_scope, rules_in_words
from chockstone.engine.config import StorageRules
from chockstone.wire.failures import BadRequest
from support.api.users import KEYS, User, url_of
from support.page_visitor import Markup, PageVisitor
from support.served import Served, serve_in_process


@pytest.fixture
async def served(tmp_path: Path, models: dict[str, Path]) -> AsyncIterator[Served]:
    rules = StorageRules(reserve_bytes=0, trash_seconds=3600.0, user_quota_bytes=10**9)
    async with serve_in_process(tmp_path, models, rules=rules, keys=KEYS, admins=frozenset({"root"})) as served:
        yield served


def marked(text: str, name: str) -> list[dict[str, str | None]]:
    return Markup(text).having("data-test", name)


async def test_the_page_shows_who_uses_what(ann: PageVisitor, root: PageVisitor, users: dict[str, User]) -> None:
    await users["ann"].save(run_id := await users["ann"].run(), "a")
    await users["bob"].save(await users["bob"].run(), "b")

    own, all_users = await ann.open("/console/storage"), await root.open("/console/storage")

    assert Markup(own.text).refused_by_policy() == []
    assert run_id in own.text
    assert "bob" not in Markup(own.text).text
    assert not marked(own.text, "by-user")
    assert {"ann", "bob"} <= set(Markup(all_users.text).text.split())
    assert "1.0 GB" in own.text  # the quota


async def test_an_empty_page_teaches(ann: PageVisitor) -> None:
    page = Markup((await ann.open("/console/storage")).text).text

    assert "Checkpoints that runs save appear here" in page
    assert "Deleted checkpoints stay here for 1 h" in page
    assert "Settings of the server" in page


async def test_a_policy_is_previewed_and_then_applied(
    ann: PageVisitor, context: Context, users: dict[str, User]
) -> None:
    run_id = await users["ann"].run()
    first, second = [await users["ann"].save(run_id, name) for name in ("one", "two")]
    form = {"scope": "mine", "keep_last": "1", "ttl": "", "quota": "1", "quota_unit": "GiB"}

    preview = await ann.post("/console/storage/policy/preview", form)
    assert first in preview.text
    assert second not in preview.text
    assert context.engine.policies.list() == ()
    [values] = [given["hx-vals"] for given in marked(preview.text, "apply-policy")]
    applied = await ann.post("/console/storage/policy/apply", _json(values))

    assert "Policy applied" in applied.text
    [policy] = context.engine.policies.list()
    assert (policy.scope, policy.changed_by) == ("user:ann", "ann")
    assert policy.policy == {"keep_last": 1, "quota_bytes": 1 << 30}


def _json(text: str | None) -> dict[str, str]:
    import json

    found: dict[str, str] = json.loads(text or "")
    return found


async def test_a_policy_is_removed_after_a_preview(ann: PageVisitor, context: Context, users: dict[str, User]) -> None:
    await users["ann"].http.put("policies/mine", json={"keep_last": 3})

    edited = await ann.open("/console/storage/policy?scope=user:ann")
    preview = await ann.post("/console/storage/policy/preview-removal", {"scope": "user:ann"})
    assert 'value="3"' in edited.text
    assert marked(preview.text, "confirm-remove-policy")
    assert len(context.engine.policies.list()) == 1
    removed = await ann.post("/console/storage/policy/remove", {"scope": "user:ann"})

    assert "Policy removed" in removed.text
    assert context.engine.policies.list() == ()


async def test_only_admins_change_the_policies_of_others(
    ann: PageVisitor, root: PageVisitor, context: Context, users: dict[str, User]
) -> None:
    run_id = await users["bob"].run()
    policy = '{"keep_last": 1}'

    assert (await ann.post("/console/storage/policy/apply", {"scope": "global", "policy": policy})).status_code == 403
    for does in ("preview", "apply", "remove", "preview-removal"):
        form = {"scope": "run:", "scope_name": run_id, "policy": policy, "keep_last": "1"}
        assert (await ann.post(f"/console/storage/policy/{does}", form)).status_code == 404
    assert context.engine.policies.list() == ()
    assert (await root.post("/console/storage/policy/apply", {"scope": "global", "policy": policy})).status_code == 200
    assert "edit-global" not in (await ann.open("/console/storage")).text


async def test_bad_policies_are_explained(ann: PageVisitor) -> None:
    for form in ({"scope": "mine", "keep_last": "zero"}, {"scope": ""}, {"scope": "nonsense"}):
        refused = await ann.post("/console/storage/policy/preview", form)
        assert refused.status_code == 400
        assert refused.json()["detail"]
    for policy in ("{", "[]", '{"keep_lats": 1}'):
        refused = await ann.post("/console/storage/policy/apply", {"scope": "mine", "policy": policy})
        assert refused.status_code == 400


async def test_a_sweep_is_previewed_and_then_done(ann: PageVisitor, users: dict[str, User]) -> None:
    await users["ann"].http.put("policies/mine", json={"keep_last": 1})
    run_id = await users["ann"].run()
    first = await users["ann"].save(run_id, "one")
    await users["ann"].save(run_id, "two")

    preview = await ann.post("/console/storage/sweep/preview")
    assert first in preview.text
    assert marked(preview.text, "sweep")
    assert await users["ann"].listed(run_id) == ["weights/two", "weights/one"]
    swept = await ann.post("/console/storage/sweep")

    assert "The sweep moved 1 checkpoint" in Markup(swept.text).text
    assert await users["ann"].listed(run_id) == ["weights/two"]


async def test_the_trash_is_listed_undeleted_and_emptied(
    ann: PageVisitor, context: Context, users: dict[str, User]
) -> None:
    run_id = await users["ann"].run()
    for name in ("one", "two"):
        await users["ann"].http.delete(url_of(await users["ann"].save(run_id, name)))

    page = await ann.open("/console/storage")
    undo = re.findall(r'hx-post="(/console/storage/trash/\d+/undelete)"', page.text)
    assert len(undo) == len(marked(page.text, "trash-entry")) == 2
    restored = await ann.post(undo[0], {"name": ""})
    assert "Undeleted" in restored.text
    assert await users["ann"].listed(run_id) == ["weights/two"]
    emptied = await ann.post("/console/storage/trash/empty")
    assert "Freed" in emptied.text
    assert not marked(emptied.text, "trash-entry")
    assert (await ann.post(undo[1], {"name": "x"})).status_code == 404


async def test_another_users_trash_is_not_there(ann: PageVisitor, context: Context, users: dict[str, User]) -> None:
    path = await users["bob"].save(await users["bob"].run(), "one")
    await users["bob"].http.delete(url_of(path))
    [entry] = await context.catalog.trash.list()

    page = await ann.open("/console/storage")
    refused = await ann.post(f"/console/storage/trash/{entry.trash_id}/undelete", {"name": ""})
    absent = await ann.post("/console/storage/trash/987654/undelete", {"name": ""})
    emptied = await ann.post("/console/storage/trash/empty")

    assert path not in page.text
    assert (refused.status_code, absent.status_code, emptied.status_code) == (404, 404, 200)
    assert refused.json()["detail"].replace(str(entry.trash_id), "987654") == absent.json()["detail"]
    assert len(await context.catalog.trash.list()) == 1


async def test_changes_need_the_token_of_the_session(ann: PageVisitor) -> None:
    for path in ("sweep", "sweep/preview", "trash/empty", "policy/apply", "policy/remove", "policy/preview"):
        refused = await ann.post(f"/console/storage/{path}", {"scope": "mine"}, but={"X-Console-Token": None})
        assert refused.status_code == 403, path


async def test_markup_in_policies_stays_text(ann: PageVisitor, users: dict[str, User]) -> None:
    attack = "'\"><script>alert(1)</script>"
    best = {"metric": attack, "mode": "min"}
    await users["ann"].http.put("policies/mine", json={"keep_best": best, "pinned": [attack]})

    for answer in (
        await ann.open("/console/storage"),
        await ann.open("/console/storage/policy?scope=user:ann"),
        await ann.open(f"/console/storage/policy?scope={attack}"),
        await ann.post("/console/storage/policy/preview", {"scope": "mine", "best_metric": attack}),
    ):
        assert answer.status_code == 200
        assert Markup(answer.text).refused_by_policy() == []
        assert not [tag for tag, given in Markup(answer.text).elements if tag == "script" and "src" not in given]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({}, ("keep everything",)),
        ({"keep_last": 3, "quota_bytes": 1 << 30}, ("keep the last 3", "quota 1.1 GB")),
        (
            {"keep_every": 1000, "ttl_seconds": 7200.0},
            ("keep every step divisible by 1,000", "remove after 2 h"),
        ),
        ({"keep_best": {"metric": "loss", "mode": "max", "count": 2}}, ("keep the 2 with the highest loss",)),
        ({"pinned": list("abcdefg")}, ("never remove a, b, c, d, e …",)),
    ],
)
def test_rules_are_said_in_words(policy: dict[str, Any], words: tuple[str, ...]) -> None:
    assert rules_in_words(policy) == words


def test_a_form_is_the_policy_and_back() -> None:
    policy = {
        "keep_last": 2,
        "keep_best": {"metric": "loss", "mode": "max", "count": 3},
        "ttl_seconds": 86_400.0,
        "quota_bytes": 5 << 30,
        "pinned": ["final", "weights/best"],
    }
    form = fill_form("mine", policy)
    fields = {name: getattr(form, name) for name in form.__slots__ if name != "exists"}

    assert read_policy(fields).to_json() == policy


def test_a_scope_is_whole_or_in_two_fields() -> None:
    assert read_scope({"scope": "run:", "scope_name": "s:train:0"}) == "run:s:train:0"
    assert read_scope({"scope": "global", "scope_name": "x"}) == "global"
    with pytest.raises(BadRequest, match="needs a scope"):
        read_scope({})
