"""Replicas: what a second worker gains, what a move of a run costs, and what the loss of a worker costs.

Every worker has one thread, so that two workers have two cores for themselves where one worker has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

import tinker
from tinker import types

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn
from benchmarks.live.client import ADAM, RANK, batch_of, new_run, session, step
from benchmarks.live.server import LiveServer, ServerFailed
from benchmarks.recovery.wire import Wire
from benchmarks.server.scale import LARGE, MEDIUM
from benchmarks.server.setup import Setup

RATE = "tokens_per_second"
WORKERS = {"one worker": 1, "two replicas": 2}
RUNS = (4, 8)
MOVED, STEPPED = "a step that a move delays", "a step without a move"
UNDISTURBED, KILLED = "undisturbed", "one replica of two killed"
STATE_BYTES = 48_000_000  # of the run that moves: adapter and both moments
KILLED_RUNS = 8
_READY_SECONDS = 60.0
_FLAGS = ("--spare-worker=off",)
_LOOK_SECONDS = 0.05


def row(workers: str, runs: int) -> str:
    return f"{workers}, {runs} runs"


def one_worker(name: str) -> str:
    """The row of one worker with the same number of runs."""
    return next(row("one worker", runs) for runs in RUNS if name.endswith(f", {runs} runs"))


class NotExact(Exception):
    """The benchmark did not do what it measures."""


def measure_gain(context: Context, setup: Setup) -> Rows:
    model, scale = setup.models[LARGE], setup.scale
    length, steps = scale.sequence_tokens // 2, scale.replica_steps
    context.describe(f"{model.title} model, rank {RANK}, 1 × {length} tokens a step of a run, 1 thread each worker")
    batches = [batch_of(model.draw(1, length + 1, seed=20 + number)) for number in range(max(RUNS))]
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        clients = stack.enter_context(ThreadPoolExecutor(max(RUNS)))
        for name, count in WORKERS.items():
            server = LiveServer([model], context.directory / name, threads=1, flags=(f"--replicas={count}", *_FLAGS))
            service = stack.enter_context(session(stack.enter_context(server).url))
            _wait_until_ready(Wire(server.url), count)
            runs = [new_run(service, model.name, seed=number) for number in range(max(RUNS))]

            def train(number: int, runs: Sequence[tinker.TrainingClient] = runs) -> None:
                for _ in range(steps):
                    step(runs[number], batches[number])

            for trained in RUNS:
                turns[row(name, trained)] = _rate_of(clients, train, trained, tokens=trained * steps * length)
        return context.run_rounds(turns, repeats=scale.replica_rounds)


def _rate_of(clients: ThreadPoolExecutor, train: Callable[[int], None], runs: int, *, tokens: int) -> Turn:
    def turn() -> Metrics:
        started = perf_counter()
        list(clients.map(train, range(runs)))
        return {RATE: tokens / (perf_counter() - started)}

    return turn


def measure_move(context: Context, setup: Setup) -> Rows:
    """The replica that has the run is drained while no operation is under way. A step that is sent at once waits for
    the move: it takes that much longer than others. Then a replica joins, and the next move goes there."""
    model, scale = setup.models[LARGE], setup.scale
    rank = model.rank_for(STATE_BYTES)
    state_bytes = 12 * rank * model.adapter_parameters(1)
    context.describe(f"{model.title} model, rank {rank}: {state_bytes / 1e6:.0f} MB of adapter and moments")
    batch = batch_of(model.draw(1, 17, seed=30))
    rows = {MOVED: Series(), STEPPED: Series()}
    server = LiveServer([model], context.directory / "moving", threads=1, flags=("--replicas=2", *_FLAGS))
    with server, session(server.url) as service:
        wire = Wire(server.url)
        _wait_until_ready(wire, 2)
        run = new_run(service, model.name, rank=rank)
        step(run, batch)
        for number in range(scale.moves + 1):
            context.say(f"move {number} of {scale.moves}" if number else "warm-up")
            usual = [_seconds(run, batch) for _ in range(3)]
            source = _holder(wire)
            started = perf_counter()
            wire.post(f"replicas/{source}/drain")
            step(run, batch)
            delayed = perf_counter() - started
            if _holder(wire) == source:
                raise NotExact(f"the run is still in replica {source}")
            _wait_until(lambda: len(_replicas(wire)) == 1, "the drained replica has left")
            if number:
                rows[STEPPED].add({"seconds": median(usual)})
                rows[MOVED].add({"seconds": delayed, "move": delayed - median(usual)})
            wire.post("replicas")
            _wait_until_ready(wire, 2)
    return rows


def measure_loss(context: Context, setup: Setup) -> Rows:
    """Eight runs train the same twice, and one of the two workers is killed in the middle of the second time."""
    model, scale = setup.models[MEDIUM], setup.scale
    length = scale.sequence_tokens // 2
    context.describe(
        f"{model.title} model, rank {RANK}, {KILLED_RUNS} runs, {scale.killed_steps} steps of 1 × {length} tokens each"
    )
    rows = {UNDISTURBED: Series(), KILLED: Series()}
    batches = [batch_of(model.draw(1, length + 1, seed=40 + number)) for number in range(KILLED_RUNS)]
    server = LiveServer([model], context.directory / "killed", threads=1, flags=("--replicas=2", *_FLAGS))
    with server:
        for number in range(scale.kills):
            found = []
            for name in rows:
                context.say(f"{name}, {number + 1} of {scale.kills}")
                results, waits = _train_all(server, model.name, batches, scale.killed_steps, is_killed=name == KILLED)
                found.append(results)
                rows[name].add({"longest": max(waits), "median": median(waits)})
            pairs = [pair for runs in zip(*found, strict=True) for pair in zip(*runs, strict=True)]
            rows[KILLED].add({"differing": float(sum(mine != theirs for mine, theirs in pairs))})
            if (deaths := sum(each["restarts"] for each in _replicas(Wire(server.url)))) != number + 1:
                raise NotExact(f"wanted {number + 1} lost workers so far, and there were {deaths}")
    rows[KILLED].note = "every log-probability of every step compared with the undisturbed runs, bit by bit"
    return rows


def _train_all(
    server: LiveServer, model: str, batches: Sequence[list[types.Datum]], steps: int, *, is_killed: bool
) -> tuple[list[list[object]], list[float]]:
    """The results of each run, and how long each step took. With ``is_killed``, a worker ends in the middle."""
    waits: list[float] = []
    _wait_until_ready(Wire(server.url), 2)
    with session(server.url) as service, ThreadPoolExecutor(KILLED_RUNS) as clients:
        runs = [new_run(service, model, seed=number) for number in range(KILLED_RUNS)]

        def train(number: int) -> list[object]:
            results: list[object] = []
            for _ in range(steps):
                started = perf_counter()
                passing = runs[number].forward_backward(batches[number], "cross_entropy")
                runs[number].optim_step(ADAM).result()
                results.append([output["logprobs"].data for output in passing.result().loss_fn_outputs])
                waits.append(perf_counter() - started)
            return results

        training = [clients.submit(train, number) for number in range(KILLED_RUNS)]
        if is_killed:
            _wait_until(lambda: len(waits) >= KILLED_RUNS * steps // 2, "half of the steps are made")
            server.worker().kill()
        return [each.result() for each in training], waits


def _seconds(run: tinker.TrainingClient, batch: list[types.Datum]) -> float:
    started = perf_counter()
    step(run, batch)
    return perf_counter() - started


def _replicas(wire: Wire) -> list[dict[str, Any]]:  # Any: JSON
    found: list[dict[str, Any]] = wire.get("replicas")["replicas"]
    return found


def _holder(wire: Wire) -> int:
    """The replica with the only run."""
    [found] = [each["number"] for each in _replicas(wire) if each["runs"]]
    return int(found)


def _wait_until_ready(wire: Wire, count: int) -> None:
    _wait_until(lambda: [each["state"] for each in _replicas(wire)] == ["ready"] * count, "all workers are ready")


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {_READY_SECONDS:.0f} s until {what}")
        time.sleep(_LOOK_SECONDS)
