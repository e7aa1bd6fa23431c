from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from chockstone.api.context import Context
from chockstone.api.status.run_states import STORED, ShownState, count_by_state, live_state, live_states, state_of
from chockstone.engine.engine import Engine
from chockstone.engine.runs.run import Held, Lost, Ready, Recovering, Run, Waiting
from support.api.users import User
from support.served import Served


@dataclass
class FakeRun:
    state: Any
    generation: int = 2


@dataclass
class FakeEngine:
    is_ready: bool = True
    generation: int = 2
    journal_trouble: str | None = None

    def holds(self, run: Run) -> bool:
        return self.is_ready and run.generation == self.generation


@pytest.mark.parametrize(
    ("run", "engine", "state"),
    [
        (FakeRun(Ready()), FakeEngine(), "ready"),
        (FakeRun(Recovering("replays")), FakeEngine(), "recovering"),
        (FakeRun(Waiting("disk")), FakeEngine(), "waiting"),
        (FakeRun(Held("model")), FakeEngine(), "held"),
        (FakeRun(Lost("gone")), FakeEngine(), "lost"),
        (FakeRun(Ready()), FakeEngine(is_ready=False), "waiting"),
        (FakeRun(Ready()), FakeEngine(journal_trouble="the disk is full"), "waiting"),
        (FakeRun(Ready(), generation=1), FakeEngine(), "recovering"),
        (FakeRun(Ready(), generation=0), FakeEngine(), "waiting"),
    ],
)
def test_each_live_run_has_a_state_and_a_reason(run: FakeRun, engine: FakeEngine, state: str) -> None:
    shown = live_state(cast("Engine", engine), cast("Run", run))

    assert shown.state == state
    assert (shown.waits_for is None) == (state == "ready")


async def test_the_live_run_is_truer_than_its_row(served: Served, context: Context, ann: User) -> None:
    run_id = await ann.run()
    row = await context.catalog.runs.get(run_id)

    assert state_of(served.engine, row) == ShownState("ready")

    served.backend.is_ready = False

    assert state_of(served.engine, row).state == "waiting"
    assert live_states(served.engine) == {run_id: "waiting"}
    assert live_states(served.engine, "bob") == {}


async def test_rows_that_no_server_has_loaded_have_states_too(context: Context, ann: User, bob: User) -> None:
    run_id, other = await ann.run(), await bob.run()
    row = replace(await context.catalog.runs.get(run_id), run_id="elsewhere")

    states = {
        stored: state_of(context.engine, replace(row, state=stored, failure="gone"))
        for stored in ("active", "parked", "unloaded", "lost")
    }
    await ann.result("unload_model", {"model_id": run_id})

    assert {stored: shown.state for stored, shown in states.items()} == {
        "active": "waiting",
        "parked": "parked",
        "unloaded": "unloaded",
        "lost": "lost",
    }
    assert states["lost"].waits_for == "gone"
    assert await count_by_state(context.engine, None) == {"ready": 1, "unloaded": 1}
    assert await count_by_state(context.engine, "ann") == {"unloaded": 1}
    assert await count_by_state(context.engine, "bob") == {"ready": 1}
    assert context.engine.runs.get(other) is not None
    assert sorted(stored for each in STORED.values() for stored in each) == ["active", "lost", "parked", "unloaded"]
