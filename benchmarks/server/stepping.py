"""Stepping: what an operation costs beyond its arithmetic, and whether many at once keep their order."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPConnection
from time import perf_counter

import tinker
from tinker import types

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows, Series
from benchmarks.live.client import LEARNING_RATE, RANK, batch_of, new_run, session
from benchmarks.live.models import Model
from benchmarks.live.server import connect
from benchmarks.server.scale import PIPELINED_OPERATIONS, SMALL
from benchmarks.server.setup import Setup

STEP = "optim_step on a gradient"
EMPTY_STEP = "optim_step without a gradient"
PASS = "forward_backward of 2 × 32 tokens"
PIPELINED = f"{PIPELINED_OPERATIONS} operations, pipelined"
ONE_BY_ONE = f"{PIPELINED_OPERATIONS} operations, one by one"
ANSWER = "GET healthz, without the SDK"
BARE = "torch.optim.AdamW.step of the same adapter"

_BIG_STEPS = types.AdamParams(learning_rate=1e-2)  # so that every step changes the next loss visibly


def measure_stepping(context: Context, setup: Setup) -> Rows:
    model = setup.models[SMALL]
    context.describe(f"{model.title} model, rank {RANK}")
    rows = {name: Series() for name in (STEP, EMPTY_STEP, PASS, ANSWER, BARE, PIPELINED, ONE_BY_ONE)}
    with session(setup.server.url) as service:
        run = new_run(service, model.name)
        batch = batch_of(model.draw(2, 33, seed=1))
        context.say("single operations")
        for number in range(setup.scale.timed_steps + 5):
            timed = {
                PASS: _seconds(lambda: run.forward_backward(batch, "cross_entropy").result()),
                STEP: _seconds(lambda: run.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()),
                EMPTY_STEP: _seconds(lambda: run.optim_step(types.AdamParams()).result()),
            }
            for name, seconds in timed.items():
                if number >= 5:
                    rows[name].add({"seconds": seconds})
        context.say("pipelined operations")
        _measure_pipeline(service, model, rows)
    connection = connect(setup.server.url)
    for _ in range(setup.scale.timed_steps):
        rows[ANSWER].add({"seconds": _seconds(lambda: _get(connection))})
    context.say(BARE)
    setup.baselines.call("prepare_training", directory=model.directory, rank=RANK, learning_rate=LEARNING_RATE)
    sequences = model.draw(2, 33, seed=1)
    rows[BARE].add(setup.baselines.call("step_optimizer", sequences=sequences, count=setup.scale.timed_steps))
    return rows


def _measure_pipeline(service: tinker.ServiceClient, model: Model, rows: Rows) -> None:
    """Two runs of one seed: operations sent all at once must give the same losses as operations sent one by one."""
    pairs = PIPELINED_OPERATIONS // 2
    batches = [batch_of(sequences) for sequences in _in_pairs(model.draw(2 * pairs, 33, seed=2))]
    waiting, patient = new_run(service, model.name, seed=7), new_run(service, model.name, seed=7)

    started = perf_counter()
    futures = [(waiting.forward_backward(batch, "cross_entropy"), waiting.optim_step(_BIG_STEPS)) for batch in batches]
    piped: list[float | None] = [_loss(passing, stepping) for passing, stepping in futures]
    rows[PIPELINED].add({"seconds": (perf_counter() - started) / PIPELINED_OPERATIONS})

    started = perf_counter()
    single = []
    for batch in batches:
        loss = patient.forward_backward(batch, "cross_entropy").result().metrics["loss:sum"]
        patient.optim_step(_BIG_STEPS).result()
        single.append(loss)
    rows[ONE_BY_ONE].add({"seconds": (perf_counter() - started) / PIPELINED_OPERATIONS})

    lost = sum(loss is None for loss in piped)
    differing = sum(mine is not None and mine != theirs for mine, theirs in zip(piped, single, strict=True))
    rows[PIPELINED].add({"lost": float(lost), "differing": float(differing)})
    rows[PIPELINED].note = f"{lost} pairs lost, {differing} losses differ from one by one"


def _loss(
    passing: tinker.APIFuture[types.ForwardBackwardOutput], stepping: tinker.APIFuture[types.OptimStepResponse]
) -> float | None:
    try:
        loss = passing.result().metrics["loss:sum"]
        stepping.result()
    except Exception:  # recorded: the operation counts as lost, which misses the figure
        return None
    return float(loss)


def _in_pairs(sequences: list[list[int]]) -> list[list[list[int]]]:
    return [sequences[index : index + 2] for index in range(0, len(sequences), 2)]


def _get(connection: HTTPConnection) -> None:
    connection.request("GET", "/api/v1/healthz")
    connection.getresponse().read()


def _seconds(action: Callable[[], object]) -> float:
    started = perf_counter()
    action()
    return perf_counter() - started
