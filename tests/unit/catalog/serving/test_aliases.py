from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, RowMissing
from chockstone.catalog.serving.aliases import HISTORY_LIMIT, SERVER_WIDE
from support.catalog.making import NOW, after


async def _set(catalog: Catalog, owner: str, name: str, target: str) -> None:
    await catalog.aliases.set(owner, name, target, by=owner or "admin", now=NOW)


async def _target(catalog: Catalog, name: str, user: str) -> str | None:
    row = await catalog.aliases.resolve(name, user)
    return None if row is None else row.target


async def test_a_users_own_alias_comes_before_the_one_of_the_server(catalog: Catalog) -> None:
    await _set(catalog, SERVER_WIDE, "prod", "base")
    await _set(catalog, "ann", "prod", "tinker://r/weights/a")

    assert await _target(catalog, "prod", "ann") == "tinker://r/weights/a"
    assert await _target(catalog, "prod", "bob") == "base"
    assert await _target(catalog, "other", "ann") is None


async def test_undo_walks_back_one_change_each_time(catalog: Catalog) -> None:
    for target in "abc":
        await _set(catalog, "ann", "prod", target)

    undone = [(await catalog.aliases.undo("ann", "prod", by="ann", now=after(hours=1))).target for _ in range(3)]

    assert undone == ["b", "a", None]
    with pytest.raises(RowMissing, match="no earlier target"):
        await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)
    history = await catalog.aliases.history("ann", "prod")
    assert [(row.action, row.target) for row in history] == [
        *(("undo", None), ("undo", "a"), ("undo", "b")),
        *(("set", "c"), ("set", "b"), ("set", "a")),
    ]


async def test_an_undo_checks_its_target_again_when_the_alias_changes_meanwhile(catalog: Catalog) -> None:
    for target in "abc":
        await _set(catalog, "ann", "prod", target)
    checked: list[str] = []

    async def check(target: str) -> None:
        checked.append(target)
        if len(checked) == 1:
            await _set(catalog, "ann", "prod", "d")

    row = await catalog.aliases.undo("ann", "prod", by="ann", now=NOW, check=check)

    assert checked == ["b", "c"]
    assert (row.target, row.revision) == ("c", 5)


async def test_an_undo_to_a_target_that_is_refused_changes_nothing(catalog: Catalog) -> None:
    for target in "ab":
        await _set(catalog, "ann", "prod", target)

    async def refuse(target: str) -> None:
        raise RowMissing(f"{target!r} is gone")

    with pytest.raises(RowMissing, match="'a' is gone"):
        await catalog.aliases.undo("ann", "prod", by="ann", now=NOW, check=refuse)

    assert await _target(catalog, "prod", "ann") == "b"


async def test_a_change_after_an_undo_is_undone_to_what_the_undo_restored(catalog: Catalog) -> None:
    await _set(catalog, "ann", "prod", "a")
    await _set(catalog, "ann", "prod", "b")
    await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)
    await _set(catalog, "ann", "prod", "c")

    row = await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)

    assert row.target == "a"


async def test_a_removal_can_be_undone_and_happens_once(catalog: Catalog) -> None:
    await _set(catalog, "ann", "prod", "a")
    await catalog.aliases.remove("ann", "prod", by="ann", now=NOW)

    assert await catalog.aliases.get("ann", "prod") is None
    assert await catalog.aliases.list("ann") == ()
    with pytest.raises(RowMissing, match="no alias 'prod'"):
        await catalog.aliases.remove("ann", "prod", by="ann", now=NOW)
    assert (await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)).target == "a"


async def test_the_same_target_again_adds_no_change(catalog: Catalog) -> None:
    await _set(catalog, "ann", "prod", "a")
    await _set(catalog, "ann", "prod", "a")

    assert len(await catalog.aliases.history("ann", "prod")) == 1


async def test_changes_at_once_are_all_in_the_history(catalog: Catalog) -> None:
    await asyncio.gather(*(_set(catalog, "ann", "prod", f"t{n}") for n in range(8)))

    history = await catalog.aliases.history("ann", "prod")
    assert [row.revision for row in history] == list(range(8, 0, -1))
    assert {row.target for row in history} == {f"t{n}" for n in range(8)}
    assert await _target(catalog, "prod", "ann") == history[0].target


async def test_aliases_that_point_at_a_checkpoint_are_found_without_those_of_other_users(catalog: Catalog) -> None:
    await _set(catalog, "ann", "mine", "x")
    await _set(catalog, "ann", "moved", "x")
    await _set(catalog, "ann", "moved", "y")
    await _set(catalog, "bob", "theirs", "x")
    await _set(catalog, SERVER_WIDE, "prod", "x")

    found = await catalog.aliases.pointing_at({"x", "z"}, owner="ann")

    assert [row.name for row in found] == ["mine", "prod"]
    assert [row.name for row in await catalog.aliases.list()] == ["mine", "moved", "prod", "theirs"]


async def test_an_undo_to_a_change_that_is_no_longer_kept_is_refused(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chockstone.catalog.serving.aliases.HISTORY_LIMIT", 2)
    for target in "abc":
        await _set(catalog, "ann", "prod", target)

    assert HISTORY_LIMIT >= 100
    assert [row.target for row in await catalog.aliases.history("ann", "prod")] == ["c", "b"]
    assert (await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)).target == "b"
    with pytest.raises(RowMissing, match="no earlier target"):
        await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)


async def _stores(catalog: Catalog, target: str, stores: bool | None) -> bool:
    return (await catalog.aliases.set("ann", "prod", target, by="ann", now=NOW, stores=stores)).stores


async def test_whether_conversations_are_stored_stays_until_it_is_changed_or_undone(catalog: Catalog) -> None:
    assert [await _stores(catalog, "a", None), await _stores(catalog, "a", True)] == [False, True]
    assert await _stores(catalog, "b", None)
    assert not await _stores(catalog, "b", False)

    undone = [await catalog.aliases.undo("ann", "prod", by="ann", now=NOW) for _ in range(3)]
    assert [(row.target, row.stores) for row in undone] == [("b", True), ("a", True), ("a", False)]
    [row] = await catalog.aliases.list("ann")
    assert not row.stores


async def test_a_removed_alias_stores_nothing_until_its_removal_is_undone(catalog: Catalog) -> None:
    await _stores(catalog, "a", True)

    assert not (await catalog.aliases.remove("ann", "prod", by="ann", now=NOW)).stores
    assert (await catalog.aliases.undo("ann", "prod", by="ann", now=NOW)).stores
