"""Recovering: a server is killed in the middle of a run's training, and started again until the run answers.

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
from benchmarks.recovery.scale import LARGE, REPLAYED_STEPS
from benchmarks.recovery.setup import Setup, new_server
from benchmarks.recovery.wire import Wire
from benchmarks.server.starting import IMPORTS, import_seconds

OURS = "killed, and started again"
ORIGINAL = "the steps that are replayed, when they were new"

_ARCHIVED_STEPS = REPLAYED_STEPS + 5  # then a recovery archive is taken, and no other before the kill
_FLAGS = (f"--recovery-steps={_ARCHIVED_STEPS}", "--recovery-replay=30d")
_LATER = 1_000_000  # a sequence number that the SDK does not reach


class NotExact(Exception):
    """The recovered run differs from the killed one, or was recovered in another way than is measured here."""


def measure_recovery(context: Context, setup: Setup) -> Rows:
    batch = setup.scale.large.batch
    steps = f"{REPLAYED_STEPS} steps of {batch} to replay"
    context.describe(f"{setup.models[LARGE].title} model, rank {RANK}, {steps}")
    rows = {OURS: Series(), ORIGINAL: Series(), IMPORTS: Series()}
    for number in range(setup.scale.recoveries):
        recovery, original = _recover(context, setup, number)
        rows[OURS].add(recovery)
        rows[ORIGINAL].add({"seconds": original})
        rows[IMPORTS].add({"seconds": import_seconds()})
    rows[OURS].note = f"{2 * REPLAYED_STEPS} operations replayed on a recovery archive, each with the same bits"
    return rows


def _recover(context: Context, setup: Setup, number: int) -> tuple[Metrics, float]:
    """Returns what was measured of the recovery, and the seconds that the replayed steps took at first."""
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
        context.say(f"recovery {number + 1} of {scale.recoveries}: killed")
        server.kill()

        began = perf_counter()
        server.start()
        answers = perf_counter() - began
        wire = Wire(server.url)
        wire.forward(run.model_id, model.draw(1, 9, seed=7), seq_id=_LATER)
        recovered = perf_counter() - began
        receipt = _receipt(wire, run.model_id)
    original = REPLAYED_STEPS * median(step_seconds[-REPLAYED_STEPS:])
    replay = receipt["seconds"]
    metrics = {"answers": answers, "replay": replay, "seconds": recovered, "besides": recovered - replay}
    return metrics | {"against_original": replay / original}, original


def _receipt(wire: Wire, run_id: str) -> Mapping[str, Any]:  # Any: JSON
    """Raises NotExact."""
    [receipt] = wire.get(f"training_runs/{run_id}/recoveries")["recoveries"]
    wanted = {"replayed": 2 * REPLAYED_STEPS, "matched": 2 * REPLAYED_STEPS, "mismatched": 0}
    if receipt["archive"] is None or any(receipt[name] != value for name, value in wanted.items()):
        raise NotExact(f"wanted {wanted} on a recovery archive, and the receipt says {receipt}")
    found: Mapping[str, Any] = receipt
    return found
