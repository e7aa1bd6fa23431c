"""Parking: many idle runs, and what they cost a server that is started with them.

They are made as clients make them, each with a step of training, on a server that has a place for one: it
parks each for the next. Starts with and without them take turns.
"""

from __future__ import annotations

from time import perf_counter

from benchmarks.harness.context import Context
from benchmarks.harness.disk import size_of
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.recovery.scale import PARKED_RANK, SMALL
from benchmarks.recovery.setup import Setup, new_server
from benchmarks.recovery.wire import Wire

EMPTY = "a server with no runs"
FULL = "a server with parked runs"

_PER_SESSION = 50
_LATER = 1_000  # a number that was not used when the runs were made


class NotParked(Exception):
    """Runs are loaded that should not be."""


def measure_parking(context: Context, setup: Setup) -> Rows:
    context.describe(f"{setup.scale.parked:,} runs on a {setup.models[SMALL].title} model")
    rows = {EMPTY: Series(), FULL: Series()}
    run_ids = _park(context, setup)
    for number in range(setup.scale.starts):
        context.say(f"start {number + 1} of {setup.scale.starts}")
        rows[EMPTY].add(_start(context, setup, "empty", None))
        rows[FULL].add(_start(context, setup, "full", run_ids[number]))
    each = size_of(context.directory / "full" / "data") / len(run_ids)
    rows[FULL].note = f"{len(run_ids):,} runs of rank {PARKED_RANK}, {each / 1e6:.2f} MB of disk for each"
    return rows


def _park(context: Context, setup: Setup) -> list[str]:
    """Made, trained for a step, and pushed out of memory by the next one, until none is loaded."""
    model = setup.models[SMALL]
    sequences = model.draw(1, 17, seed=9)
    run_ids: list[str] = []
    with new_server(context, model, "full", "--max-runs=1") as server:
        wire = Wire(server.url)
        while len(run_ids) < setup.scale.parked:
            session_id = wire.new_session()
            for number in range(min(_PER_SESSION, setup.scale.parked - len(run_ids))):
                context.say(f"making run {len(run_ids) + 1} of {setup.scale.parked}")
                run_id = wire.new_run(session_id, number, base_model=model.name, rank=PARKED_RANK)
                wire.train(run_id, sequences, seq_id=1)
                run_ids.append(run_id)
        last = wire.new_session()
        wire.new_run(last, 0, base_model=model.name, rank=PARKED_RANK)
        wire.finish(last)
        left = len(run_ids) - _count_parked(wire)
        server.kill()
    if left:
        raise NotParked(f"{left} of {len(run_ids)} runs are not parked although only one has a place")
    return run_ids


def _count_parked(wire: Wire) -> int:
    parked, offset = 0, 0
    while page := wire.get(f"training_runs?limit=1000&offset={offset}")["training_runs"]:
        parked += sum(run["state"] == "parked" for run in page)
        offset += len(page)
    return parked


def _start(context: Context, setup: Setup, home: str, parked_run_id: str | None) -> Metrics:
    """Memory is measured when one new run is loaded, so that the worker is there; then a parked one is woken."""
    model = setup.models[SMALL]
    sequences = model.draw(1, 17, seed=9)
    began = perf_counter()
    with new_server(context, model, home) as server:
        metrics = {"answers": perf_counter() - began}
        wire = Wire(server.url)
        session_id = wire.new_session()
        run_id = wire.new_run(session_id, 0, base_model=model.name, rank=PARKED_RANK)
        wire.train(run_id, sequences, seq_id=1)
        metrics["memory"] = sum(process.memory_info().rss for process in (server.process, server.worker()))
        if parked_run_id is not None:
            began = perf_counter()
            wire.forward(parked_run_id, sequences, seq_id=_LATER)
            metrics["woken"] = perf_counter() - began
        wire.finish(session_id)
    return metrics
