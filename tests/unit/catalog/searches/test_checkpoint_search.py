from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from chockstone.catalog import Catalog, CheckpointRow, Usage
from chockstone.catalog.searches.checkpoint_search import CheckpointOrder, CheckpointQuery
from support.catalog.making import NOW, after, begin, save

ORDERS: list[CheckpointOrder] = ["newest", "oldest", "largest", "smallest", "name", "step", "expiry"]


async def names(catalog: Catalog, **conditions: Any) -> list[str]:
    page = await catalog.checkpoint_search.find(CheckpointQuery(**conditions), now=NOW)
    return [row.name for row in page.rows]


async def populate(catalog: Catalog, count: int) -> list[CheckpointRow]:
    """Many with equal values: save ids break the ties."""
    chance = random.Random(7)
    return [
        await save(
            catalog,
            f"step-{chance.randrange(6)}",
            archive=f"archives/{number}",
            run_id=f"s:train:{number}",
            size_bytes=chance.choice([10, 20, 30]),
            now=after(seconds=-chance.randrange(5)),
            step=chance.choice([None, 1, 2]),
            expires_at=chance.choice([None, after(days=1), after(days=2)]),
        )
        for number in range(count)
    ]


def sort_key(order: CheckpointOrder, row: CheckpointRow) -> tuple[Any, int]:
    values = {
        "newest": -row.created_at.timestamp(),
        "oldest": row.created_at.timestamp(),
        "largest": -row.size_bytes,
        "smallest": row.size_bytes,
        "name": row.name,
        "step": -(-1 if row.step is None else row.step),
        "expiry": row.expires_at or datetime(9999, 1, 1, tzinfo=UTC),
    }
    return values[order], -row.save_id if order in ("newest", "largest", "step") else row.save_id


@pytest.mark.parametrize("order", ORDERS)
async def test_pages_in_every_order_show_each_checkpoint_once(catalog: Catalog, order: CheckpointOrder) -> None:
    made = await populate(catalog, 25)

    seen: list[CheckpointRow] = []
    cursor = None
    for _ in range(10):
        page = await catalog.checkpoint_search.find(CheckpointQuery(order=order, limit=4, cursor=cursor), now=NOW)
        assert page.matched == Usage(25, sum(row.size_bytes for row in made))
        seen += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == sorted(made, key=lambda row: sort_key(order, row))


async def test_a_page_stays_right_when_earlier_checkpoints_are_deleted(catalog: Catalog) -> None:
    rows = [await save(catalog, f"s{number}", now=after(seconds=-number)) for number in range(6)]
    first = await catalog.checkpoint_search.find(CheckpointQuery(limit=3), now=NOW)

    await catalog.checkpoints.discard(rows[:2], reason="deleted", now=NOW, purge_at=after(hours=1))
    second = await catalog.checkpoint_search.find(CheckpointQuery(limit=3, cursor=first.next_cursor), now=NOW)

    assert [row.name for row in second.rows] == ["s3", "s4", "s5"]
    assert second.next_cursor is None


async def test_each_condition_narrows_the_list(catalog: Catalog) -> None:
    plain = await save(catalog, "plain", now=after(seconds=-1))
    await save(catalog, "shared", kind="sampler_weights", public=True, now=after(seconds=-2))
    await save(catalog, "theirs", owner="other", run_id="t:train:0", base_model="Llama", now=after(seconds=-3))
    await save(catalog, "soon", expires_at=after(days=1), now=after(seconds=-4))
    await catalog.checkpoints.mark_damaged(plain.save_id, "bits rotted")
    await save(catalog, "over", expires_at=after(seconds=-1), now=after(days=-1))
    await begin(catalog, "being-written")

    assert await names(catalog) == ["plain", "shared", "theirs", "soon"]
    assert await names(catalog, owner="other") == ["theirs"]
    assert await names(catalog, run_id="s:train:0", kinds=["weights"]) == ["plain", "soon"]
    assert await names(catalog, state="damaged") == ["plain"]
    assert await names(catalog, public=True) == ["shared"]
    assert await names(catalog, expires=True) == ["soon"]
    assert await names(catalog, expires=False, state="ready") == ["shared", "theirs"]
    assert await names(catalog, base_models=["Llama"]) == ["theirs"]
    assert await names(catalog, owner="nobody") == []


async def test_words_match_run_name_and_model_in_any_case_and_literally(catalog: Catalog) -> None:
    await save(catalog, "Step_100", now=after(seconds=-1))
    await save(catalog, "stepx100", base_model="Llama", now=after(seconds=-2))

    assert await names(catalog, words=("STEP", "qwen")) == ["Step_100"]
    assert await names(catalog, words=("p_1",)) == ["Step_100"]
    assert await names(catalog, words=("%",)) == []
    assert await names(catalog, words=("s:train", "100")) == ["Step_100", "stepx100"]
