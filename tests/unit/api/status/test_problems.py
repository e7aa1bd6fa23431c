from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from chockstone.api.context import Context
from chockstone.api.status import problems
from chockstone.api.status.disk_space import DiskForecast, FreeSpace
from chockstone.api.status.problems import ServerProblem
from chockstone.backends.protocol import WorkerStatus
from chockstone.catalog import CatalogUnavailable, RunProgress
from support.api.users import User
from support.engine.gap_meter import SERVER, ScriptedGapMeter, measured, unmeasured
from support.served import Served


@pytest.fixture(autouse=True)
def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_FRESH_SECONDS", 0.0)


async def found(context: Context, owner: str | None = None) -> dict[str, ServerProblem]:
    return {each.kind: each for each in await context.status.problems.current(owner)}


async def test_a_server_without_problems_lists_none(context: Context, ann: User) -> None:
    await ann.save(await ann.run(), "a")

    assert await found(context) == {}


async def test_a_run_that_is_held_is_its_owners_and_the_admins(context: Context, ann: User) -> None:
    run_id = await ann.run()
    live = context.engine.runs.get(run_id)
    assert live is not None
    live.hold("base model 'x' is not served at the moment")

    [(kind, problem)] = (await found(context)).items()

    assert (kind, problem.run_id, problem.owner) == ("run_held", run_id, "ann")
    assert "base model 'x' is not served" in problem.what and problem.to_do
    assert await found(context, "ann") == {"run_held": problem}
    assert await found(context, "bob") == {}


async def test_since_is_when_it_was_first_seen_and_begins_anew_when_it_comes_back(
    context: Context, served: Served
) -> None:
    writer = served.engine._writer
    assert writer is not None
    writer.trouble = "the disk is full"
    first = (await found(context))["journal_not_written"]
    again = (await found(context, "ann"))["journal_not_written"]
    writer.trouble = None
    assert await found(context) == {}
    writer.trouble = "the disk is full"
    back = (await found(context))["journal_not_written"]
    writer.trouble = None

    assert first.since is not None and back.since is not None
    assert first == again, "a problem of the server is everybody's"
    assert back.since > first.since


async def test_damage_lost_runs_and_differing_recoveries_are_found_in_the_catalog(
    context: Context, ann: User, bob: User
) -> None:
    now, run_id = context.now(), await ann.run()
    path = await ann.save(run_id, "a")
    row = await context.catalog.checkpoints.get(run_id, "weights", "a", now=now)
    await context.catalog.checkpoints.mark_damaged(row.save_id, "block 3 differs from its digest")
    lost = await bob.run()
    await bob.result("unload_model", {"model_id": lost})
    await context.catalog.runs.record_progress({lost: RunProgress(7)})
    await context.catalog.runs.set_state(lost, "lost", failure="its journal cannot be read")
    await context.catalog.recoveries.add(
        run_id=run_id, owner="ann", at=now, reason="signal 9", replayed=5, mismatched=2, lost=1
    )

    every = await found(context)
    own = await found(context, "ann")

    assert set(every) == {"checkpoints_damaged", "run_lost", "recovery_differs"}
    assert set(own) == {"checkpoints_damaged", "recovery_differs"}
    assert every["checkpoints_damaged"].path == path and "block 3" in every["checkpoints_damaged"].what
    assert "its journal cannot be read" in every["run_lost"].what
    assert "2 of 5 replayed operations and 1 acknowledged" in every["recovery_differs"].what
    assert every["recovery_differs"].since == now


async def test_trash_that_should_be_gone_is_a_problem(context: Context, ann: User) -> None:
    now, run_id = context.now(), await ann.run()
    await ann.save(run_id, "a")
    row = await context.catalog.checkpoints.get(run_id, "weights", "a", now=now)
    long_ago = now - timedelta(hours=2)
    await context.catalog.checkpoints.discard([row], reason="deleted", now=long_ago, purge_at=long_ago)

    assert (await found(context))["trash_overdue"].path == row.path


async def test_a_worker_that_is_away_or_died_lately_is_a_problem(
    context: Context, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = time.time() - 60
    status = WorkerStatus(phase="restarting", since=at, deaths=2, last_death="it was killed", last_death_at=at)
    monkeypatch.setattr(type(served.backend), "status", status)
    served.backend.is_ready = False
    away = await found(context)
    served.backend.is_ready = True
    back = await found(context)
    monkeypatch.setattr(problems, "_RECENT_DEATH", timedelta(seconds=30))
    later = await found(context)

    assert set(away) == {"worker_not_ready"} and "it was killed" in away["worker_not_ready"].what
    assert set(back) == {"worker_died"} and "died 2 times" in back["worker_died"].what
    assert later == {}


async def test_a_disk_that_fills_within_days_is_a_problem(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> FreeSpace:
        return FreeSpace(10**9, 10**10, "/data")

    monkeypatch.setattr(context.status.disk, "look", look)
    monkeypatch.setattr(context.status.disk, "forecast", lambda _: DiskForecast(1e9, 1.04))

    assert "in 1.0 days" in (await found(context))["disk_fills_soon"].what

    monkeypatch.setattr(context.status.disk, "forecast", lambda _: DiskForecast(1e6, 1000.0))

    assert await found(context) == {}


async def test_it_keeps_looking_though_a_look_fails(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = asyncio.Semaphore(0)

    async def fail(_: object) -> None:
        looks.release()
        raise RuntimeError("out of order")

    monkeypatch.setattr(problems, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(context.status.problems, "current", fail)
    keeping = asyncio.create_task(context.status.problems.keep())
    for _ in range(2):
        await looks.acquire()
    keeping.cancel()

    assert "problems not looked for error=out of order" in caplog.text


async def test_a_catalog_that_is_away_hides_no_other_problem(
    context: Context, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(**_: object) -> None:
        raise CatalogUnavailable("away")

    monkeypatch.setattr(context.catalog.run_search, "list_lost", fail)
    served.backend.environment["models"] = {}

    assert set(await found(context)) == {"model_not_loaded"}


async def test_the_problems_of_one_user_do_not_crowd_out_those_of_another(
    context: Context, ann: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "_NAMED", 2)
    runs = {"ann": await ann.run(), "bob": await bob.run()}
    for number, owner in enumerate(("ann", "bob", "bob", "bob")):
        await context.catalog.recoveries.add(
            run_id=runs[owner], owner=owner, at=context.now(), reason="signal 9", replayed=number, mismatched=1
        )

    own, others, every = [await context.status.problems.current(owner) for owner in ("ann", "bob", None)]

    assert [each.owner for each in own] == ["ann"]
    assert [each.owner for each in others] == ["bob", "bob"]
    assert every == others, "admins see the newest of all users"


@pytest.mark.parametrize("gap_meter", [ScriptedGapMeter(limit=0.1)])
async def test_weights_that_vllm_may_not_serve_are_one_problem_of_each_server(
    context: Context, gap_meter: ScriptedGapMeter
) -> None:
    assert await found(context) == {}
    failed = unmeasured("values that are no log-probabilities", server="http://gpu-2:8001")
    gap_meter.exceeding = [measured(0.2), measured(0.314), failed]

    one, two = await context.status.problems.current("bob")

    assert (one.kind, two.kind) == ("sampler_gap", "sampler_gap")
    assert one.what == (
        f"The vLLM server {SERVER!r} does not sample from 2 sets of weights of 'tiny': "
        "log-probabilities differ by 0.31 nats, the limit is 0.1."
    )
    assert "one set of weights" in two.what and "values that are no log-probabilities" in two.what
    gap_meter.exceeding = [failed]
    [again] = await context.status.problems.current(None)
    assert again == two, "it began when it was first seen"
