"""Recovering: a worker is killed in the middle of a run's training, then its server, until the run answers again.

The run has a recovery archive, and twenty optimizer steps since. What the recovery did is read from its receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.live.client import RANK, batch_of, new_run, session, step
from benchmarks.live.models import Model
from benchmarks.live.server import memory_bytes
from benchmarks.recovery.scale import LARGE, REPLAYED_STEPS
from benchmarks.recovery.setup import Setup, new_server
from benchmarks.recovery.wire import Wire
from benchmarks.server.starting import IMPORTS, import_seconds

OURS = "server killed, and started again"
WORKER = "worker killed, and replaced by its spare"
SPARE = "the spare worker that waits"
ORIGINAL = "the steps that are replayed, when they were new"

_ARCHIVED_STEPS = REPLAYED_STEPS + 5  # then a recovery archive is taken, and no other before the kill
_FLAGS = (f"--recovery-steps={_ARCHIVED_STEPS}", "--recovery-replay=30d", "--spare-worker=1s")
_LATER = 1_000_000  # a sequence number that the SDK does not reach


class NotExact(Exception):
    """The recovered run differs from the killed one, or was recovered in another way than is measured here."""


def measure_recovery(context: Context, setup: Setup) -> Rows:
    batch = setup.scale.large.batch
    steps = f"{REPLAYED_STEPS} steps of {batch} to replay"
    context.describe(f"{setup.models[LARGE].title} model, rank {RANK}, {steps}")
    rows = {name: Series() for name in (OURS, WORKER, SPARE, ORIGINAL, IMPORTS)}
    for number in range(setup.scale.recoveries):
        for name, metrics in _recover(context, setup, number).items():
            rows[name].add(metrics)
        rows[IMPORTS].add({"seconds": import_seconds()})
    rows[OURS].note = f"{2 * REPLAYED_STEPS} operations replayed on a recovery archive, each with the same bits"
    return rows


def _recover(context: Context, setup: Setup, number: int) -> dict[str, Metrics]:
    """Returns what was measured of both recoveries and of the spare, and how long the replayed steps took at first."""
    scale, model = setup.scale, setup.models[LARGE]
    batch = batch_of(model.draw(scale.large.sequences, scale.large.tokens + 1, seed=6))
    with new_server(context, model, f"server-{number}", *_FLAGS) as server, session(server.url) as service:
        run = new_run(service, model.name, rank=RANK)
        step_seconds: list[float] = []
        while len(step_seconds) < _ARCHIVED_STEPS + REPLAYED_STEPS:
            context.say(f"recovery {number + 1} of {scale.recoveries}: step {len(step_seconds) + 1}")
            began = perf_counter()
            step(run, batch)
            step_seconds.append(perf_counter() - began)
        original = REPLAYED_STEPS * median(step_seconds[-REPLAYED_STEPS:])

        context.say(f"recovery {number + 1} of {scale.recoveries}: worker killed")
        spare_bytes = memory_bytes(server.wait_for_spare())
        worker, wire = server.worker(), Wire(server.url)
        began = perf_counter()
        worker.kill()
        worker.wait()
        replaced = _answered(wire, run.model_id, model, began, count=1)

        context.say(f"recovery {number + 1} of {scale.recoveries}: server killed")
        server.wait_for_spare()  # else it would take time of the next server
        server.kill()
        began = perf_counter()
        server.start()
        answers = perf_counter() - began
        restarted = _answered(Wire(server.url), run.model_id, model, began, count=2)
    share = {"against_original": restarted["replay"] / original}
    return {
        OURS: restarted | share | {"answers": answers},
        WORKER: replaced,
        SPARE: {"memory": float(spare_bytes)},
        ORIGINAL: {"seconds": original},
    }


def _answered(wire: Wire, run_id: str, model: Model, began: float, *, count: int) -> Metrics:
    """Wait for the run to answer. It has been recovered ``count`` times by then."""
    wire.forward(run_id, model.draw(1, 9, seed=7), seq_id=_LATER + count)
    seconds = perf_counter() - began
    replay = _receipt(wire, run_id, count=count)["seconds"]
    return {"seconds": seconds, "replay": replay, "besides": seconds - replay}


def _receipt(wire: Wire, run_id: str, *, count: int) -> Mapping[str, Any]:  # Any: JSON
    """Of the newest recovery. Raises NotExact."""
    receipts = wire.get(f"training_runs/{run_id}/recoveries")["recoveries"]
    if len(receipts) != count:
        raise NotExact(f"wanted {count} recoveries, and there were {len(receipts)}")
    receipt = max(receipts, key=lambda each: str(each["at"]))
    operations = 2 * REPLAYED_STEPS + count - 1  # those after an earlier recovery included
    wanted = {"replayed": operations, "matched": operations, "mismatched": 0}
    if receipt["archive"] is None or any(receipt[name] != value for name, value in wanted.items()):
        raise NotExact(f"wanted {wanted} on a recovery archive, and the receipt says {receipt}")
    found: Mapping[str, Any] = receipt
    return found
