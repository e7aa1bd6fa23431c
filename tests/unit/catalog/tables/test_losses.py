from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, LossRow, RowMissing
from support.catalog.making import NOW, make_session


async def make_loss(catalog: Catalog, seq_id: int = 0, *, name: str = "mine") -> LossRow:
    definition = {"nodes": [{"op": "sum", "weight": -0.1}]}
    return await catalog.losses.create("s", seq_id, owner="local", name=name, definition=definition, now=NOW)


async def test_a_loss_comes_back_as_it_was_uploaded(catalog: Catalog) -> None:
    await make_session(catalog)

    made = await make_loss(catalog)

    assert made == await catalog.losses.get("s:loss:0")
    assert made == LossRow("s:loss:0", "s", 0, "local", "mine", {"nodes": [{"op": "sum", "weight": -0.1}]}, NOW)


async def test_a_retried_upload_is_the_first_one(catalog: Catalog) -> None:
    await make_session(catalog)

    made = await asyncio.gather(*(make_loss(catalog, name=str(n)) for n in range(20)))
    second = await make_loss(catalog, 1)

    assert len({loss.name for loss in made}) == 1
    assert await catalog.losses.get("s:loss:0") == made[0]
    assert second.loss_id == "s:loss:1"


async def test_what_is_unknown_is_missing(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="session 's'"):
        await make_loss(catalog)
    with pytest.raises(RowMissing, match="custom loss 'x'"):
        await catalog.losses.get("x")
