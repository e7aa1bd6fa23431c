"""The neighbour: what is left of the server's speed beside busy processes that take half of the cores.

The fair share of the server is a half. Without neighbours, threads may sleep early by mistake. What that costs is the
share of the time in which they slept, times what sleeping costs: a server whose threads always sleep early is compared
with one whose threads always spin. Two servers as they are cannot be compared to 2 %: single turns differ by 20 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import perf_counter, time

import tinker

from benchmarks.harness.aims import Value, paired_ratio
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn, extend
from benchmarks.live.client import batch_of, new_run, sample_all, session, step
from benchmarks.live.models import Model
from benchmarks.live.server import LiveServer
from benchmarks.server.scale import FULL, PROMPT_TOKENS, SMALL, SMALL_SEQUENCES
from benchmarks.server.setup import Setup

ALONE, BESIDE, PINNED = "alone", "beside busy processes", "beside busy processes on the first cores"
SMALL_BATCH, LARGE_BATCH, SAMPLING = "training, 4 × 64 tokens", "training, 4 × 256 tokens", "sampling"
SPINNING, SLEEPING = "threads always spin", "threads always sleep early"
RATE, ASLEEP = "tokens_per_second", "asleep"
WORKLOADS = (SMALL_BATCH, LARGE_BATCH, SAMPLING)
_SEQUENCES = 4
_LENGTHS = {SMALL_BATCH: 64, LARGE_BATCH: 256}
_SAMPLED_TOKENS = 32
_BUSY = "while True: pass"
# The server leaves a spin count alone that is set. Both are libgomp's own: its default, and that of too many threads.
_SPIN_COUNTS = {SPINNING: "300000", SLEEPING: "100"}
_WATCHED = ("--spare-worker=off", "--log-level=debug", "--log-format=json")


def row(workload: str, setting: str) -> str:
    return f"{workload}, {setting}"


def alone(name: str) -> str:
    """The row of the same workload without neighbours."""
    return next(row(workload, ALONE) for workload in WORKLOADS if name.startswith(f"{workload}, "))


def lost_alone(workload: str) -> Value:
    """Share of the speed that is lost without neighbours, because threads sleep early at times."""

    def value(rows: Rows) -> float | None:
        asleep = rows[row(workload, ALONE)].samples.get(ASLEEP) if row(workload, ALONE) in rows else None
        kept = paired_ratio(RATE, row(workload, SLEEPING), row(workload, SPINNING), group=FULL.spinning_rounds)(rows)
        return None if not asleep or kept is None else mean(asleep) * max(0.0, 1 - kept)

    return value


def measure_neighbour(context: Context, setup: Setup) -> Rows:
    """Not in turns with and without neighbours: the server takes a second to notice that a neighbour has gone."""
    context.describe(f"{setup.models[SMALL].title} model")
    rows: Rows = {}
    home = context.directory / "watched"
    watched = LiveServer([setup.models[SMALL]], home, threads=context.threads, flags=_WATCHED)
    with watched as server, session(server.url) as service:
        works = _workloads(setup, service)
        for name, work in works.items():
            alone = {row(name, ALONE): _watching(server.log, work)}
            rows |= context.run_rounds(alone, repeats=setup.scale.alone_rounds)
        for setting in (BESIDE, PINNED):
            with neighbours(are_pinned=setting == PINNED):
                turns = {row(name, setting): work for name, work in works.items()}
                rows |= context.run_rounds(turns, repeats=setup.scale.neighbour_rounds)
    for number in range(setup.scale.spinning_starts):
        extend(rows, _compare_sleeping(context, setup, order=1 if number % 2 else -1))
    return rows


def _compare_sleeping(context: Context, setup: Setup, *, order: int) -> Rows:
    """Two new servers take turns, so that both see the same moments of the machine.

    Of two servers that do the same, the one that was started first is up to 20 % slower or faster for as long as both
    live. So this is done with several pairs, and each of the two starts first as often.
    """
    rows: Rows = {}
    with ExitStack() as stack:
        servers = {}
        for setting in (SPINNING, SLEEPING)[::order]:
            home = Path(stack.enter_context(TemporaryDirectory(dir=context.directory)))
            environment = {"GOMP_SPINCOUNT": _SPIN_COUNTS[setting]}
            flags = ("--spare-worker=off",)
            server = LiveServer(
                [setup.models[SMALL]], home, threads=context.threads, flags=flags, environment=environment
            )
            servers[setting] = stack.enter_context(server)
        works = {
            setting: _workloads(setup, stack.enter_context(session(server.url))) for setting, server in servers.items()
        }
        for name in WORKLOADS:
            pair = {row(name, setting): works[setting][name] for setting in (SLEEPING, SPINNING)}
            rows |= context.run_rounds(pair, repeats=setup.scale.spinning_rounds)
    return rows


def _watching(log: Path, work: Turn) -> Turn:
    """Also measures for which share of the turn threads slept early."""

    def turn() -> Metrics:
        started = time()
        metrics = work()
        return metrics | {ASLEEP: _asleep(log, started, time())}

    return turn


def _asleep(log: Path, started: float, ended: float) -> float:
    """Share of the time from ``started`` to ``ended``, from the lines that the worker logs when it changes."""
    asleep, since, sleeps = 0.0, started, False
    for line in log.read_text().splitlines():
        if "openmp threads" not in line:
            continue
        entry = json.loads(line)
        moment = min(max(datetime.fromisoformat(entry["time"]).timestamp(), started), ended)
        asleep += (moment - since) * sleeps
        since, sleeps = moment, "sleep early" in entry["message"]
    return (asleep + (ended - since) * sleeps) / (ended - started)


def _workloads(setup: Setup, service: tinker.ServiceClient) -> dict[str, Turn]:
    model = setup.models[SMALL]
    sampler = service.create_sampling_client(base_model=model.name)
    prompts = model.draw(SMALL_SEQUENCES, PROMPT_TOKENS, seed=8)
    works = {name: _training(setup, service, model, length) for name, length in _LENGTHS.items()}
    works[SAMPLING] = _repeating(setup, lambda: sample_all(sampler, prompts, samples=1, max_tokens=_SAMPLED_TOKENS))
    return works


def _training(setup: Setup, service: tinker.ServiceClient, model: Model, length: int) -> Turn:
    run = new_run(service, model.name)
    batch = batch_of(model.draw(_SEQUENCES, length + 1, seed=7))

    def train() -> int:
        step(run, batch)
        return _SEQUENCES * length

    return _repeating(setup, train)


def _repeating(setup: Setup, work: Callable[[], int]) -> Turn:
    """Repeats ``work`` for the length of a turn. ``work`` returns the number of its tokens."""

    def turn() -> Metrics:
        tokens, started = 0, perf_counter()
        while (seconds := perf_counter() - started) < setup.scale.neighbour_seconds:
            tokens += work()
        return {RATE: tokens / seconds}

    return turn


@contextmanager
def neighbours(*, are_pinned: bool) -> Iterator[None]:
    """Sessions of their own, as other users' processes have; some kernels share cores between sessions."""
    cores = sorted(os.sched_getaffinity(0))
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores[: max(1, len(cores) // 2)]:
            busy.append(subprocess.Popen([sys.executable, "-c", _BUSY], start_new_session=True))
            if are_pinned:
                os.sched_setaffinity(busy[-1].pid, {core})
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
