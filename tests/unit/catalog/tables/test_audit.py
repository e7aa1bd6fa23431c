from __future__ import annotations

from datetime import date

import pytest

from chockstone.catalog import AuditEvent, AuditRow, Catalog, UnstorableColumnValue
from support.catalog.making import NOW, after


async def events(catalog: Catalog, owner: str | None = None, **chosen: object) -> list[str]:
    return [row.event for row in await catalog.audit.list(owner, **chosen)]  # type: ignore[arg-type]  # of the tests


async def test_an_entry_comes_back_as_it_was_recorded(catalog: Catalog) -> None:
    path = "tinker://s:train:0/weights/a"

    await catalog.audit.record(
        "checkpoint.deleted",
        owner="local",
        now=NOW,
        run_id="s:train:0",
        path=path,
        purpose="retention",
        details={"bytes": 2**40},
    )
    await catalog.audit.record("project.created", owner="local", now=NOW)

    [full, bare] = await catalog.audit.list("local")
    assert full == AuditRow(
        full.audit_id, "checkpoint.deleted", "local", NOW, "s:train:0", path, "retention", {"bytes": 2**40}
    )
    assert bare == AuditRow(bare.audit_id, "project.created", "local", NOW, None, None, None, {})


async def test_entries_are_listed_newest_last(catalog: Catalog) -> None:
    await catalog.audit.record_many(AuditEvent(f"e{n}", "local", after(seconds=-n)) for n in range(4))
    await catalog.audit.record_many([])

    assert await events(catalog) == ["e3", "e2", "e1", "e0"]
    assert await events(catalog, limit=2) == ["e1", "e0"]


async def test_entries_are_chosen_by_owner_day_and_beginning(catalog: Catalog) -> None:
    await catalog.audit.record_many(
        [
            AuditEvent("checkpoint.saved", "local", after(hours=-13)),  # the day before
            AuditEvent("checkpoint.saved", "other", NOW),
            AuditEvent("CHECKPOINT.saved", "local", NOW),
            AuditEvent("checkpoint_deleted", "local", NOW),
            AuditEvent("checkpoint.deleted", "local", after(hours=11)),
            AuditEvent("project.made", "local", after(hours=12)),  # midnight
        ]
    )

    assert await events(catalog, "other") == ["checkpoint.saved"]
    assert await events(catalog, prefix="checkpoint.") == ["checkpoint.saved", "checkpoint.saved", "checkpoint.deleted"]
    assert await events(catalog, prefix="checkpoint_") == ["checkpoint_deleted"]
    assert await events(catalog, day=date(2029, 12, 31)) == ["checkpoint.saved"]
    assert await events(catalog, day=date.max) == await events(catalog, day=date.min) == []
    assert await events(catalog, day=date(2030, 1, 2)) == ["project.made"]
    assert await events(catalog, "local", day=NOW.date(), prefix="checkpoint.") == ["checkpoint.deleted"]


async def test_old_entries_are_trimmed(catalog: Catalog) -> None:
    await catalog.audit.record_many(AuditEvent(f"e{n}", "local", after(hours=n)) for n in range(4))

    assert await catalog.audit.trim(after(hours=2)) == 2
    assert await events(catalog) == ["e2", "e3"]


async def test_entries_are_recorded_all_or_none(catalog: Catalog) -> None:
    entries = [AuditEvent("good", "local", NOW), AuditEvent("bad", "local", NOW, details={"nan": float("nan")})]

    with pytest.raises(UnstorableColumnValue):
        await catalog.audit.record_many(entries)

    assert await events(catalog) == []


async def test_rows_are_found_by_user_and_run(catalog: Catalog) -> None:
    await catalog.audit.record("checkpoint_read", owner="ann", now=NOW, run_id="r", details={"by": "bob"})
    await catalog.audit.record("checkpoint_saved", owner="ann", now=NOW, run_id="r")
    await catalog.audit.record("checkpoint_saved", owner="bob", now=NOW, run_id="q")

    assert [row.event for row in await catalog.audit.list(None, user="bob")] == ["checkpoint_read", "checkpoint_saved"]
    assert [row.owner for row in await catalog.audit.list(None, user="bob", run_id="q")] == ["bob"]
    assert [row.event for row in await catalog.audit.list("ann", user="bob")] == ["checkpoint_read"]
    assert len(await catalog.audit.list(None, run_id="r")) == 2
