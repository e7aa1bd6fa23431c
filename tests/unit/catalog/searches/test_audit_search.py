from __future__ import annotations

from typing import Any

from chockstone.catalog import AuditEvent, Catalog
from chockstone.catalog.searches.audit_search import AuditQuery
from support.catalog.making import after


async def paths(catalog: Catalog, **conditions: Any) -> list[str | None]:
    return [row.path for row in (await catalog.audit_search.find(AuditQuery(**conditions))).rows]


async def populate(catalog: Catalog) -> None:
    await catalog.audit.record_many(
        [
            AuditEvent("checkpoint_saved", "ann", after(seconds=1), "r1", "a", details={"by": "ann"}),
            AuditEvent("checkpoint_read", "ann", after(seconds=2), "r1", "b", details={"by": "bob"}),
            AuditEvent("checkpoint_saved", "bob", after(seconds=2), "r2", "c", details={"by": "bob"}),
            AuditEvent("run_deleted", "ann", after(seconds=3), "r1", "d", details={"by": "root"}),
            AuditEvent("key_refused", "", after(seconds=4), None, "e", details={"count": 3}),
        ]
    )


async def test_entries_come_newest_first_a_page_at_a_time(catalog: Catalog) -> None:
    await populate(catalog)

    first = await catalog.audit_search.find(AuditQuery(limit=2))
    second = await catalog.audit_search.find(AuditQuery(limit=2, cursor=first.next_cursor))
    third = await catalog.audit_search.find(AuditQuery(limit=2, cursor=second.next_cursor))

    assert [row.path for page in (first, second, third) for row in page.rows] == ["e", "d", "c", "b", "a"]
    assert third.next_cursor is None


async def test_each_condition_narrows_the_list(catalog: Catalog) -> None:
    await populate(catalog)

    assert await paths(catalog, owner="ann") == ["d", "b", "a"]
    assert await paths(catalog, user="bob") == ["c", "b"]
    assert await paths(catalog, owner="ann", user="bob") == ["b"]
    assert await paths(catalog, run_id="r1") == ["d", "b", "a"]
    assert await paths(catalog, event="checkpoint_") == ["c", "b", "a"]
    assert await paths(catalog, event="checkpoint_saved", owner="ann") == ["a"]
    assert await paths(catalog, event="%") == []
