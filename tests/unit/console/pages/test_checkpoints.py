from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.catalog import SamplerGapRow
from chockstone.catalog.searches.checkpoint_search import CheckpointCursor
from chockstone.console.pages.checkpoints import ORDERS, read_cursor, write_cursor
from chockstone.engine.config import StorageRules
from chockstone.wire.failures import BadRequest
from support.api.users import KEYS, User, url_of
from support.catalog.making import save
from support.page_visitor import Markup, PageVisitor
from support.served import Served, serve_in_process


@pytest.fixture
def trash_seconds() -> float:
    return 0.0


@pytest.fixture
async def served(tmp_path: Path, models: dict[str, Path], trash_seconds: float) -> AsyncIterator[Served]:
    rules = StorageRules(reserve_bytes=0, trash_seconds=trash_seconds)
    async with serve_in_process(tmp_path, models, rules=rules, keys=KEYS, admins=frozenset({"root"})) as served:
        yield served


def action(path: str, name: str) -> str:
    return f"/console/checkpoints/{path.removeprefix('tinker://')}/{name}"


def paths(answer: httpx.Response, test: str = "checkpoint") -> list[str | None]:
    assert answer.status_code == 200, answer.text
    return [given["data-path"] for given in Markup(answer.text).having("data-test", test)]


async def events(context: Context, *names: str) -> list[tuple[str, str | None, Any]]:
    await context.engine.audit.flush()
    rows = await context.catalog.audit.list(None)
    return [(row.event, row.path, row.details.get("by")) for row in rows if row.event in names]


async def test_the_list_has_what_is_known_of_a_checkpoint(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    path = await users["ann"].save(run_id, "first", user_metadata={"loss": "0.25"})

    page = Markup((await ann.open("/console/checkpoints")).text)

    assert page.having("data-test", "page-checkpoints")
    assert page.refused_by_policy() == []
    for text in (path, "first", "Training state", "0.25", "1 checkpoint", f'load_state_with_optimizer("{path}")'):
        assert text in page.text


async def test_the_gap_of_weights_by_vllm_is_shown_where_it_was_measured(
    ann: PageVisitor, context: Context, users: dict[str, User]
) -> None:
    run_id = await users["ann"].run()
    await users["ann"].save(run_id, "first")
    await users["ann"].save(run_id, "second", kind="sampler_weights")
    row = await context.catalog.checkpoints.get(run_id, "sampler_weights", "second", now=context.now())
    for server, mean in (("http://one", 0.002), ("http://two", 0.31)):
        gap = SamplerGapRow(row.base_model, row.archive, server, mean, mean, 128, None, context.now())
        await context.catalog.sampler_gaps.record(gap)

    page = Markup((await ann.open("/console/checkpoints")).text)

    assert len(page.having("data-test", "sampler-gap")) == 1
    assert "vLLM gap 0.31 nats" in page.text


async def test_an_empty_list_teaches_how_to_save(ann: PageVisitor) -> None:
    assert "save_state" in (await ann.open("/console/checkpoints")).text
    assert "Nothing is published" in (await ann.open("/console/checkpoints?whose=public")).text
    assert "No checkpoint matches" in (await ann.open("/console/checkpoints?q=zzz")).text
    assert "No lineage yet" in (await ann.open("/console/checkpoints?view=tree")).text


async def test_users_see_their_own_and_published_ones_and_admins_see_all(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    bob = users["bob"]
    hidden, shared = [await bob.save(await bob.run(), name) for name in ("hidden", "shared")]
    await bob.http.post(url_of(shared, "publish"))
    own = await users["ann"].save(await users["ann"].run(), "own")

    assert paths(await ann.open("/console/checkpoints")) == [own]
    assert paths(await ann.open("/console/checkpoints?whose=public")) == [shared]
    assert paths(await root.open("/console/checkpoints")) == [own, shared, hidden]
    assert paths(await root.open("/console/checkpoints?owner=bob")) == [shared, hidden]
    for query in ("whose=all", "owner=bob"):
        assert (await ann.open(f"/console/checkpoints?{query}")).status_code == 403
    for view in ("whose=public&view=tree", "view=tree"):
        assert bob.user_id not in Markup((await ann.open(f"/console/checkpoints?{view}")).text).text


async def test_filters_and_orders_come_from_the_url(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    late = await users["ann"].save(run_id, "zulu")
    early = await users["ann"].save(run_id, "alpha", kind="sampler_weights", ttl_seconds=7200)

    assert paths(await ann.open("/console/checkpoints?sort=name")) == [early, late]
    assert paths(await ann.open("/console/checkpoints?kind=weights")) == [late]
    assert paths(await ann.open("/console/checkpoints?state=expiring")) == [early]
    assert paths(await ann.open("/console/checkpoints?q=ZUL")) == [late]
    assert paths(await ann.open(f"/console/checkpoints?run={run_id}&state=damaged")) == []
    for query in ("sort=size", "kind=x", "state=x", "view=x", "whose=x", "cursor=x", f"q={'x' * 201}"):
        assert (await ann.open(f"/console/checkpoints?{query}")).status_code == 400


async def test_further_pages_continue_where_the_last_one_ended(ann: PageVisitor, context: Context) -> None:
    for number in range(60):
        await save(context.catalog, f"s{number:02}", owner="ann", now=context.now(), size_bytes=number % 7)

    first = await ann.open("/console/checkpoints?sort=largest")
    [more] = Markup(first.text).having("hx-get", None)[-1:]
    rest = await ann.open(str(more["hx-get"]), **{"HX-Request": "true"})

    assert len(paths(first)) == 50
    assert len({*paths(first), *paths(rest)}) == 60
    assert not Markup(rest.text).having("data-test", "page-checkpoints")
    assert not Markup(rest.text).having("data-test", "more")


async def test_publishing_and_making_private_again(ann: PageVisitor, context: Context, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    published = await ann.post(action(path, "publish"))
    assert "every user can read it" in published.text
    assert (await users["ann"].entry(path))["public"] is True
    private = await ann.post(action(path, "unpublish"))
    assert paths(private) == [path]
    assert (await users["ann"].entry(path))["public"] is False
    assert await events(context, "checkpoint_published", "checkpoint_unpublished") == [
        ("checkpoint_published", path, "ann"),
        ("checkpoint_unpublished", path, "ann"),
    ]


async def test_an_expiry_is_set_and_removed(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    await ann.post(action(path, "expire"), {"amount": "2", "amount_unit": "days"})
    left = datetime.fromisoformat((await users["ann"].entry(path))["expires_at"]) - datetime.now(UTC)
    assert 47 < left.total_seconds() / 3600 <= 48
    await ann.post(action(path, "expire"), {"amount": "", "amount_unit": "days"})
    assert "expires_at" not in await users["ann"].entry(path)
    for amount in ("-1", "x", "1e300"):
        refused = await ann.post(action(path, "expire"), {"amount": amount, "amount_unit": "days"})
        assert refused.status_code == 400


async def test_verifying_tells_what_was_found(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    assert "every digest is right" in (await ann.post(action(path, "verify"))).text


@pytest.mark.parametrize("trash_seconds", [3600.0])
async def test_a_delete_can_be_undone_while_there_is_a_trash(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    deleted = await ann.post(action(path, "delete"))
    assert paths(deleted, "checkpoint-deleted") == [path]
    [undo] = re.findall(r'hx-post="(/console/checkpoints/undo/\d+)"', deleted.text)
    assert paths(await ann.open("/console/checkpoints")) == []
    restored = await ann.post(undo)
    assert paths(restored) == [path]
    assert paths(await ann.open("/console/checkpoints")) == [path]
    assert (await ann.post(undo)).status_code == 404
    assert (await ann.post("/console/checkpoints/undo/99999999999999999999")).status_code == 404


async def test_without_a_trash_a_delete_is_final_and_says_so(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    deleted = await ann.post(action(path, "delete"))

    assert "no trash" in Markup(deleted.text).text
    assert "undo" not in deleted.text
    assert (await ann.post(action(path, "delete"))).status_code == 404


async def test_the_download_leads_to_a_signed_url(ann: PageVisitor, context: Context, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    answer = await ann.open(action(path, "download"))

    assert answer.status_code == 303
    archive = await ann.http.get(answer.headers["Location"])
    assert archive.status_code == 200
    assert archive.headers["content-disposition"] == 'attachment; filename="a.tar"'
    assert await events(context, "checkpoint_read") == [("checkpoint_read", path, "ann")]


async def test_the_tree_shows_runs_and_loads_their_checkpoints(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    path = await users["ann"].save(run_id, "a")

    tree = Markup((await ann.open("/console/checkpoints?view=tree")).text)
    branch = await ann.open(f"/console/checkpoints/of-run/{run_id}")

    assert [given["data-run"] for given in tree.having("data-test", "branch")] == [run_id]
    assert paths(branch) == [path]


ACTIONS = ("publish", "unpublish", "expire", "pin", "unpin", "verify", "delete")


async def test_another_users_checkpoint_cannot_be_changed_and_looks_like_none(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    path = await users["bob"].save(await users["bob"].run(), "a")
    before = await users["bob"].entry(path)
    form = {"amount": "1", "amount_unit": "days"}

    for name in ACTIONS:
        refused = await ann.post(action(path, name), form)
        absent = await ann.post(action(path.replace("/weights/a", "/weights/none"), name), form)

        assert (refused.status_code, absent.status_code) == (404, 404)
        assert refused.json()["detail"].replace("/a'", "/none'") == absent.json()["detail"]
        assert (await root.post(action(path, name), form)).status_code == 404  # admins see it, and no more than that
        assert await users["bob"].entry(path) == before


async def test_another_users_checkpoint_cannot_be_seen_or_downloaded(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    run_id = await users["bob"].run()
    path = await users["bob"].save(run_id, "a")

    for url in (action(path, "download"), f"/console/checkpoints/of-run/{run_id}"):
        assert (await ann.open(url)).status_code == 404, url
    assert paths(await root.open(f"/console/checkpoints/of-run/{run_id}")) == [path]


async def test_a_change_that_no_page_of_ours_sent_is_refused(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")
    forgeries: list[dict[str, str | None]] = [
        {"X-Console-Token": None},
        {"X-Console-Token": "0" * 64},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": None},
        {"Sec-Fetch-Site": "cross-site"},
    ]

    for but in forgeries:
        assert (await ann.post(action(path, "delete"), but=but)).status_code == 403

    assert (await users["ann"].entry(path))["tinker_path"] == path


async def test_a_change_by_a_link_is_not_possible(ann: PageVisitor, users: dict[str, User]) -> None:
    path = await users["ann"].save(await users["ann"].run(), "a")

    assert (await ann.open(action(path, "delete"))).status_code in (404, 405)
    assert (await users["ann"].entry(path))["tinker_path"] == path


async def test_markup_in_metadata_stays_text(ann: PageVisitor, users: dict[str, User]) -> None:
    attack = "</dd><script>alert(1)</script><img src=x onerror=alert(1)>'\""
    await users["ann"].save(await users["ann"].run(), "a", user_metadata={attack: attack})

    page = Markup((await ann.open("/console/checkpoints")).text)
    searched = Markup((await ann.open("/console/checkpoints?q=%3Cscript%3Ealert(1)%3C/script%3E")).text)

    assert attack in page.text
    assert page.refused_by_policy() == []
    assert searched.refused_by_policy() == []


@pytest.mark.parametrize("order", ORDERS)
def test_cursors_of_every_order_survive_the_url(order: Any) -> None:
    value: Any = {"name": "a~b", "largest": 5, "smallest": 5, "step": -1}.get(order, datetime(2030, 1, 1, tzinfo=UTC))

    assert read_cursor(write_cursor(CheckpointCursor(value, 7)), order) == CheckpointCursor(value, 7)


@pytest.mark.parametrize(
    ("text", "order"),
    [("", "name"), ("x~a", "name"), ("-1~a", "name"), ("1~x", "largest"), ("1~2030-01-01", "newest"), ("1~", "step")],
)
def test_a_foreign_cursor_is_refused(text: str, order: Any) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        read_cursor(text, order)
