"""Parking: many runs that nobody uses, and what they cost a server that is started with them.

They are made as clients make them, each with a step of training, on a server that has a place for one: it
parks each for the next. Starts with and without them take turns.
"""

from __future__ import annotations

from time import perf_counter

from benchmarks.checkpoints.durability import size_of
from benchmarks.checkpoints.rounds import Metrics, Series
from benchmarks.recovery.scale import PARKED_RANK
from benchmarks.recovery.stage import Stage
from benchmarks.recovery.wire import Wire
from benchmarks.server.models import SMALL

EMPTY = "a server with no runs"
FULL = "a server with parked runs"

_PER_SESSION = 50
_LATER = 1_000  # a number that was not used when the runs were made


class NotParked(Exception):
    """Runs are loaded that should not be."""


def measure_parking(stage: Stage) -> dict[str, Series]:
    rows = {EMPTY: Series(), FULL: Series()}
    run_ids = _park(stage)
    for number in range(stage.scale.starts):
        stage.say(f"start {number + 1} of {stage.scale.starts}")
        rows[EMPTY].add(_start(stage, "empty", None))
        rows[FULL].add(_start(stage, "full", run_ids[number]))
    each = size_of(stage.directory / "full" / "data") / len(run_ids)
    rows[FULL].note = f"{len(run_ids):,} runs of rank {PARKED_RANK}, {each / 1e6:.2f} MB of disk for each"
    return rows


def _park(stage: Stage) -> list[str]:
    """Made, trained for a step, and pushed out of memory by the next one, until none is loaded."""
    model = stage.models[SMALL]
    sequences = model.draw(1, 17, seed=9)
    run_ids: list[str] = []
    with stage.server(model, "full", "--max-runs=1") as server:
        wire = Wire(server.url)
        while len(run_ids) < stage.scale.parked:
            session_id = wire.new_session()
            for number in range(min(_PER_SESSION, stage.scale.parked - len(run_ids))):
                stage.say(f"making run {len(run_ids) + 1} of {stage.scale.parked}")
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


def _start(stage: Stage, home: str, parked_run_id: str | None) -> Metrics:
    """Memory is measured when one new run is loaded, so that the worker is there; then a parked one is woken."""
    model = stage.models[SMALL]
    sequences = model.draw(1, 17, seed=9)
    began = perf_counter()
    with stage.server(model, home) as server:
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
