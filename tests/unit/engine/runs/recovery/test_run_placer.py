from __future__ import annotations

import asyncio

import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.checkpoints import Store
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.runs.commands import StepOptimizer
from chockstone.engine.runs.operations import Operation, OperationRequest
from chockstone.engine.runs.recovery.run_placer import RunPlacer
from chockstone.engine.runs.run import LiveRuns, Run, RunFacts
from chockstone.engine.runs.run_journal import RunJournal
from support.engine.fake_backend import FakeBackend
from support.engine.making import blank_history


@pytest.fixture
def backends(store: Store) -> list[FakeBackend]:
    made = [FakeBackend(store), FakeBackend(store)]
    for backend in made:
        backend.is_ready = True
    return made


@pytest.fixture
def runs() -> LiveRuns:
    return LiveRuns()


@pytest.fixture
def placer(backends: list[FakeBackend], runs: LiveRuns) -> RunPlacer:
    return RunPlacer(ReplicaSet(backends), runs)


def made(runs: LiveRuns, number: int = 0) -> Run:
    facts = RunFacts(f"s:train:{number}", "s", number, "local", "tiny", {"rank": 8}, {"type": "adamw"})
    run = Run(facts, RunJournal(None, None), blank_history(facts.run_id))
    runs.add(run)
    return run


async def test_runs_go_to_the_least_loaded_replica(placer: RunPlacer, runs: LiveRuns) -> None:
    placed = [made(runs, number) for number in range(4)]

    for run in placed:
        await placer.place(run)

    assert [run.replica for run in placed] == [0, 1, 0, 1]


async def test_a_run_keeps_its_place(placer: RunPlacer, backends: list[FakeBackend], runs: LiveRuns) -> None:
    first, run = made(runs), made(runs, 1)
    await placer.place(first)
    await placer.place(run)
    runs.remove(first)

    assert await placer.place(run) is backends[1]


async def test_a_run_of_a_dead_replica_goes_to_another(
    placer: RunPlacer, backends: list[FakeBackend], runs: LiveRuns
) -> None:
    run = made(runs)
    await placer.place(run)
    backends[0].is_ready = False

    placer.note_lost(run)

    assert placer.is_ready_for(run)
    assert await placer.place(run) is backends[1]


async def test_a_run_that_waits_for_a_dead_replica_is_placed_elsewhere_once_the_death_is_known(
    placer: RunPlacer, backends: list[FakeBackend], runs: LiveRuns
) -> None:
    run = made(runs)
    await placer.place(run)
    backends[0].is_ready = False
    placing = asyncio.create_task(placer.place(run))
    await asyncio.sleep(0.01)
    assert not placing.done()

    placer.note_lost(run)

    assert await placing is backends[1]


async def test_a_suspect_stays_with_the_second_replica_that_died(
    placer: RunPlacer, backends: list[FakeBackend], runs: LiveRuns
) -> None:
    run = made(runs)
    await placer.place(run)
    operation = Operation(OperationRequest(StepOptimizer({}), "s:train:0:1"))
    run.note_submitted(operation, at=0.0)
    placer.note_lost(run)
    operation.count_death(was_sent=True)
    backends[0].is_ready = False
    await placer.place(run)

    placer.note_lost(run)
    backends[0].is_ready, backends[1].is_ready = True, False

    assert not placer.is_ready_for(run)
    backends[1].is_ready = True
    assert await placer.place(run) is backends[1]


async def test_no_run_is_placed_once_no_worker_will_be_started(
    placer: RunPlacer, backends: list[FakeBackend], runs: LiveRuns
) -> None:
    for backend in backends:
        backend.is_ready, backend.is_stopped = False, True

    with pytest.raises(WorkerLost):
        await placer.place(made(runs))
