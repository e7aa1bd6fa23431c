from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from chockstone.catalog import CheckpointRow, TrashRow, Usage
from chockstone.catalog.tables.checkpoint_rows import CheckpointHolding
from chockstone.checkpoints.stores.store import StoreEntry
from chockstone.engine.storage.shared_bytes import Parcel, parcels, real_usage_by_run

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
ROW = CheckpointRow(
    save_id=1,
    run_id="s:train:0",
    kind="weights",
    name="a",
    owner="ann",
    archive="a",
    state="ready",
    overwrites=False,
    size_bytes=10,
    created_at=NOW,
    expires_at=None,
    public=False,
    user_metadata={},
    base_model="tiny",
    spec={},
    optimizer_config={},
    step=None,
    damage=None,
)


def trash(archive: str) -> TrashRow:
    return TrashRow(1, replace(ROW, archive=archive), "deleted", NOW, NOW)


def entries(*found: StoreEntry) -> dict[str, StoreEntry]:
    return {each.name: each for each in found}


def entry(name: str, size: int = 10, *, content: int | None = None, links: int = 1) -> StoreEntry:
    return StoreEntry(name, size, NOW, None if content is None else (1, content), links)


def test_trash_that_shares_no_bytes_is_a_parcel_each() -> None:
    rows = [trash("a"), trash("b")]

    assert parcels(rows, entries(entry("a", 10), entry("b", 20))) == [Parcel((rows[0],), 10), Parcel((rows[1],), 20)]


def test_trash_that_shares_its_bytes_is_one_parcel_where_its_last_row_is() -> None:
    rows = [trash("a"), trash("b"), trash("copy of a")]
    found = entries(entry("a", content=7, links=2), entry("b"), entry("copy of a", content=7, links=2))

    assert parcels(rows, found) == [Parcel((rows[1],), 10), Parcel((rows[0], rows[2]), 10)]


def test_bytes_that_have_a_name_elsewhere_are_not_freed() -> None:
    found = entries(entry("a", content=7, links=3), entry("b", content=7, links=3))

    assert parcels([trash("a"), trash("b")], found) == []


def test_trash_that_is_not_in_the_store_frees_nothing() -> None:
    assert parcels([trash("a")], {}) == []


def test_shared_bytes_are_used_by_the_first_that_holds_them() -> None:
    holdings = [CheckpointHolding(run_id, "ann", archive) for run_id, archive in (("r", "a"), ("t", "b"), ("t", "c"))]
    found = entries(entry("a", content=7, links=2), entry("b", content=7, links=2), entry("c", 5))

    assert real_usage_by_run(holdings, found) == {"r": Usage(1, 10), "t": Usage(2, 5)}


def test_what_is_not_in_the_store_is_counted_and_uses_nothing() -> None:
    assert real_usage_by_run([CheckpointHolding("r", "ann", "gone")], {}) == {"r": Usage(1, 0)}
