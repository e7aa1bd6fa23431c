from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from chockstone.catalog import AuditEvent, Catalog, CatalogUnavailable
from chockstone.engine import audit as audit_module
from chockstone.engine.audit import AuditLog
from support.engine.making import NOW


@pytest.fixture
def audit(catalog: Catalog) -> AuditLog:
    return AuditLog(catalog, now=lambda: NOW)


async def events(catalog: Catalog) -> list[str]:
    return [row.event for row in await catalog.audit.list(None)]


async def test_what_was_noted_is_there_after_a_flush(audit: AuditLog, catalog: Catalog) -> None:
    audit("checkpoint_saved", owner="ann", run_id="r", path="tinker://r/weights/a", details={"size_bytes": 5})
    audit("checkpoint_read", owner="bob", purpose="download")
    assert await audit.flush()

    [row] = await catalog.audit.list("ann")
    assert (row.event, row.at, row.run_id, row.path) == ("checkpoint_saved", NOW, "r", "tinker://r/weights/a")
    assert row.details == {"size_bytes": 5}
    assert await events(catalog) == ["checkpoint_saved", "checkpoint_read"]


async def test_noting_never_waits_and_the_catalog_hears_of_it_soon(audit: AuditLog, catalog: Catalog) -> None:
    keeping = asyncio.create_task(audit.keep())
    for _ in range(3):
        audit("checkpoint_saved", owner="ann")

    async with asyncio.timeout(10):
        while await events(catalog) != ["checkpoint_saved"] * 3:
            await asyncio.sleep(0.001)
    keeping.cancel()


async def test_a_flush_waits_for_entries_that_another_one_writes(
    audit: AuditLog, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, may_write = catalog.audit.record_many, asyncio.Event()

    async def record_slowly(entries: Iterable[AuditEvent]) -> None:
        await may_write.wait()
        await record(list(entries))

    monkeypatch.setattr(catalog.audit, "record_many", record_slowly)
    audit("checkpoint_saved", owner="ann")
    first = asyncio.create_task(audit.flush())
    await asyncio.sleep(0)
    second = asyncio.create_task(audit.flush())
    done, _ = await asyncio.wait({second}, timeout=0.05)
    may_write.set()
    await asyncio.gather(first, second)

    assert not done
    assert await events(catalog) == ["checkpoint_saved"]


async def test_a_catalog_that_fails_loses_nothing(
    audit: AuditLog, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unavailable(entries: Iterable[AuditEvent]) -> None:
        raise CatalogUnavailable("the disk is full")

    monkeypatch.setattr(audit_module, "_RETRY_SECONDS", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(catalog.audit, "record_many", unavailable)
        audit("first", owner="ann")
        assert not await audit.flush()
    audit("second", owner="ann")
    assert await audit.flush()

    assert await events(catalog) == ["first", "second"]
    assert "audit not written" in caplog.text
