from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from chockstone.api.context import Context
from support.api.users import User, refusal


async def answer(user: User, **query: Any) -> dict[str, Any]:
    while True:
        got: httpx.Response = await user.http.get("doctor", params=query)
        assert got.status_code == 200, got.text
        if got.json()["state"] != "running":
            found: dict[str, Any] = got.json()
            return found
        await asyncio.sleep(0.01)


async def test_an_admin_sees_what_differs_and_what_repairs_it(
    context: Context, ann: User, root: User, store: Path
) -> None:
    run_id = await ann.run()
    await ann.save(run_id, "a")
    row = await context.catalog.checkpoints.get(run_id, "weights", "a", now=context.now())
    (store / f"{row.archive}.tar").unlink()

    found = await answer(root)

    assert (found["state"], found["is_healthy"], found["checkpoints"]) == ("done", False, 1)
    assert found["counts"]["missing"] == 1 and found["examined_at"]
    [missing] = [each for each in found["findings"] if each["kind"] == "missing"]
    assert missing["subject"] == row.path and "--fix" in missing["remedy"] and missing["cause"]
    assert (await context.catalog.checkpoints.get(run_id, "weights", "a", now=context.now())) == row, (
        "it changes nothing"
    )


async def test_only_admins_see_the_findings(ann: User) -> None:
    assert "only admins" in refusal(await ann.http.get("doctor"), 403)
