"""The neighbour: what is left of the server's speed beside busy processes that take half of the cores.

The fair share of the server is a half. Without neighbours, the server is compared with one whose OpenMP threads always
spin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn, extend
from benchmarks.live.client import batch_of, new_run, sample_all, session, step
from benchmarks.live.models import Model
from benchmarks.live.server import LiveServer
from benchmarks.server.scale import PROMPT_TOKENS, SMALL, SMALL_SEQUENCES
from benchmarks.server.setup import Setup

ALONE, BESIDE, PINNED = "alone", "beside busy processes", "beside busy processes on the first cores"
SMALL_BATCH, LARGE_BATCH, SAMPLING = "training, 4 × 64 tokens", "training, 4 × 256 tokens", "sampling"
SPINNING = "threads always spin"
WORKLOADS = (SMALL_BATCH, LARGE_BATCH, SAMPLING)
_SEQUENCES = 4
_LENGTHS = {SMALL_BATCH: 64, LARGE_BATCH: 256}
_SAMPLED_TOKENS = 32
_BUSY = "while True: pass"
_AS_LIBGOMP = {"GOMP_SPINCOUNT": "300000"}  # the default of libgomp; set explicitly, the server leaves it alone


def row(workload: str, setting: str) -> str:
    return f"{workload}, {setting}"


def alone(name: str) -> str:
    """The row of the same workload without neighbours."""
    return next(row(workload, ALONE) for workload in WORKLOADS if name.startswith(f"{workload}, "))


def measure_neighbour(context: Context, setup: Setup) -> Rows:
    """Not in turns with and without neighbours: the server takes a second to notice that a neighbour has gone."""
    context.describe(f"{setup.models[SMALL].title} model")
    rows: Rows = {}
    if setup.scale.compares_spinning:
        for number in range(setup.scale.spinning_starts):
            extend(rows, _compare_with_spinning(context, setup, ours_first=number % 2 == 0))
    with session(setup.server.url) as service:
        works = _workloads(setup, service)
        if not setup.scale.compares_spinning:
            alone = {row(name, ALONE): work for name, work in works.items()}
            rows |= context.run_rounds(alone, repeats=setup.scale.neighbour_rounds)
        for setting in (BESIDE, PINNED):
            with neighbours(are_pinned=setting == PINNED):
                turns = {row(name, setting): work for name, work in works.items()}
                rows |= context.run_rounds(turns, repeats=setup.scale.neighbour_rounds)
    return rows


def _compare_with_spinning(context: Context, setup: Setup, *, ours_first: bool) -> Rows:
    """Two new servers take turns, so that both see the same moments of the machine.

    Of two servers that do the same, the one that was started first is up to 20 % slower or faster for as long as both
    live. So this is done with several pairs, and each of the two starts first as often.
    """
    rows: Rows = {}
    with ExitStack() as stack:
        servers = {}
        for setting in (ALONE, SPINNING) if ours_first else (SPINNING, ALONE):
            home = Path(stack.enter_context(TemporaryDirectory(dir=context.directory)))
            environment = _AS_LIBGOMP if setting == SPINNING else None
            server = LiveServer([setup.models[SMALL]], home, threads=context.threads, environment=environment)
            servers[setting] = stack.enter_context(server)
        works = {
            setting: _workloads(setup, stack.enter_context(session(server.url))) for setting, server in servers.items()
        }
        for name in WORKLOADS:
            pair = {row(name, setting): works[setting][name] for setting in (ALONE, SPINNING)}
            rows |= context.run_rounds(pair, repeats=setup.scale.spinning_rounds)
    return rows


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
        return {"tokens_per_second": tokens / seconds}

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
