"""No page holds the event loop, and so the training: rendering and encoding happen in threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert

from chockstone.api.context import Context
from chockstone.api.tokenizers.tokenizer_service import TokenizerService
from chockstone.catalog import schema as tables
from chockstone.console.pages import checkpoint_tree
from chockstone.console.pages import run as run_page
from chockstone.console.views import Views
from support.api.users import MODEL, User
from support.loop_gate import HeldTheLoop, LoopGate, inline_to_thread
from support.page_visitor import Markup, PageVisitor
from support.tokenizers import write_tokenizer

PAGES = ["/console", "/console/runs", "/console/compare", "/console/runs/RUN", "/console/sign-in", "/console/nowhere"]
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("path", PAGES)
async def test_rendering_leaves_the_loop_alone(
    ann: PageVisitor, users: dict[str, User], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    run_id = await users["ann"].run()
    gate = LoopGate()
    monkeypatch.setattr(Views, "_render_now", gate.before(Views._render_now))

    async with gate.watch():
        answer = await ann.open(path.replace("RUN", run_id))

    assert answer.status_code in (200, 404)


async def test_rendering_inline_would_be_found(ann: PageVisitor, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = LoopGate(guard_seconds=0.2)
    monkeypatch.setattr(Views, "_render_now", gate.before(Views._render_now))
    inline_to_thread(monkeypatch)

    with pytest.raises(HeldTheLoop):
        async with gate.watch():
            await ann.open("/console")


@pytest.mark.parametrize(("name", "tail"), [("to_json", "/points"), ("to_csv", "/points.csv")])
async def test_encoding_points_leaves_the_loop_alone(
    ann: PageVisitor, users: dict[str, User], monkeypatch: pytest.MonkeyPatch, name: str, tail: str
) -> None:
    run_id = await users["ann"].run()
    gate = LoopGate()
    encode: Callable[..., bytes] = getattr(run_page, name)
    monkeypatch.setattr(run_page, name, gate.before(encode))

    async with gate.watch():
        answer = await ann.open(f"/console/runs/{run_id}{tail}")

    assert answer.status_code == 200


async def test_building_the_tree_of_checkpoints_leaves_the_loop_alone(
    ann: PageVisitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoopGate()
    monkeypatch.setattr(checkpoint_tree, "build", gate.before(checkpoint_tree.build))

    async with gate.watch():
        answer = await ann.open("/console/checkpoints?view=tree")

    assert answer.status_code == 200


async def test_a_slow_tokenizer_leaves_the_loop_alone(
    ann: PageVisitor, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(models[MODEL])
    gate = LoopGate()
    monkeypatch.setattr(TokenizerService, "_exchange", gate.before(TokenizerService._exchange))

    async with gate.watch():
        answer = await ann.open(f"/console/playground/model?source={MODEL}")

    assert answer.json() == {"chat": True, "problem": None}


async def test_ten_thousand_checkpoints_are_a_page_of_fifty(ann: PageVisitor, context: Context) -> None:
    values = [
        {
            "run_id": f"s:train:{number % 100}",
            "kind": "weights",
            "name": f"c{number}",
            "owner": "ann",
            "archive": f"a{number}",
            "state": "ready",
            "overwrites": False,
            "size_bytes": 1000,
            "public": False,
            "created_at": NOW,
            "user_metadata": {},
            "base_model": MODEL,
            "spec": {},
            "optimizer_config": {},
        }
        for number in range(10_000)
    ]
    await context.catalog._database.write_many(insert(tables.checkpoints), values)

    answer = await ann.open("/console/checkpoints")

    page = Markup(answer.text)
    assert len(page.having("data-test", "checkpoint")) == 50
    assert "10,000 checkpoints" in page.text
    assert len(answer.content) < 400_000


async def test_a_thousand_runs_are_a_page_of_fifty(ann: PageVisitor, context: Context) -> None:
    await context.catalog.sessions.create("s", owner="ann", sdk_version="0.36.0", now=NOW)
    for number in range(1000):
        await context.catalog.runs.create(
            "s",
            number,
            owner="ann",
            base_model=MODEL,
            spec={"rank": 4},
            now=NOW + timedelta(seconds=number),
            user_metadata={"name": f"sweep-{number}"},
            state="parked",
        )

    answer = await ann.open("/console/runs")
    found = await ann.open("/console/runs?query=sweep-999")

    page = Markup(answer.text)
    assert len(page.having("data-test", "run-row")) == 50
    assert "1,000 runs" in page.text
    assert len(answer.content) < 200_000
    assert len(Markup(found.text).having("data-test", "run-row")) == 1
