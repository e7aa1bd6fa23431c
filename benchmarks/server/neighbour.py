"""The neighbour: what is left of the server's speed beside busy processes that take half of the cores.

Its fair share is a half. And what it costs, with nobody beside it, not to have its threads spin at any price.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter

import tinker

from benchmarks.checkpoints.rounds import Action, Metrics, Series
from benchmarks.server.client import batch_of, new_run, sample_all, session, step
from benchmarks.server.live import LiveServer
from benchmarks.server.models import SMALL, Model
from benchmarks.server.scale import PROMPT_TOKENS, SMALL_SEQUENCES
from benchmarks.server.stage import Stage

ALONE, BESIDE, PINNED = "alone", "beside busy processes", "beside busy processes on the first cores"
SMALL_BATCH, LARGE_BATCH, SAMPLING = "training, 4 × 64 tokens", "training, 4 × 256 tokens", "sampling"
SPINNING = "threads always spin"
WORKLOADS = (SMALL_BATCH, LARGE_BATCH, SAMPLING)
_SEQUENCES = 4
_LENGTHS = {SMALL_BATCH: 64, LARGE_BATCH: 256}
_SAMPLED_TOKENS = 32
_BUSY = "while True: pass"
_AS_LIBGOMP = {"GOMP_SPINCOUNT": "300000"}  # its own default, which is then a user's decision


def row(workload: str, company: str) -> str:
    return f"{workload}, {company}"


def measure_neighbour(stage: Stage) -> dict[str, Series]:
    """One company after the other, not in turns: the server takes a second to notice that a neighbour has gone."""
    rows: dict[str, Series] = {}
    with ExitStack() as stack:
        works = _workloads(stage, stack.enter_context(session(stage.server.url)))
        if stage.scale.compares_spinning:
            spinning = LiveServer(
                [stage.models[SMALL]],
                stage.directory / "neighbour",
                threads=stage.threads,
                environment=_AS_LIBGOMP,
            )
            theirs = _workloads(stage, stack.enter_context(session(stack.enter_context(spinning).url)))
            for name in WORKLOADS:  # the two servers take turns, so that both see the same moments of the machine
                pair = {row(name, ALONE): works[name], row(name, SPINNING): theirs[name]}
                rows |= stage.run_rounds(pair, repeats=stage.scale.spinning_rounds)
        else:
            alone = {row(name, ALONE): work for name, work in works.items()}
            rows |= stage.run_rounds(alone, repeats=stage.scale.neighbour_rounds)
        for company in (BESIDE, PINNED):
            with _neighbours(are_pinned=company == PINNED):
                actions = {row(name, company): work for name, work in works.items()}
                rows |= stage.run_rounds(actions, repeats=stage.scale.neighbour_rounds)
    return rows


def _workloads(stage: Stage, service: tinker.ServiceClient) -> dict[str, Action]:
    model = stage.models[SMALL]
    sampler = service.create_sampling_client(base_model=model.name)
    prompts = model.draw(SMALL_SEQUENCES, PROMPT_TOKENS, seed=8)
    works = {name: _training(stage, service, model, length) for name, length in _LENGTHS.items()}
    works[SAMPLING] = _repeating(stage, lambda: sample_all(sampler, prompts, samples=1, max_tokens=_SAMPLED_TOKENS))
    return works


def _training(stage: Stage, service: tinker.ServiceClient, model: Model, length: int) -> Action:
    run = new_run(service, model.name)
    batch = batch_of(model.draw(_SEQUENCES, length + 1, seed=7))

    def train() -> int:
        step(run, batch)
        return _SEQUENCES * length

    return _repeating(stage, train)


def _repeating(stage: Stage, work: Callable[[], int]) -> Action:
    """``work`` again and again for the length of a turn; it returns how many tokens it was about."""

    def action() -> Metrics:
        tokens, started = 0, perf_counter()
        while (seconds := perf_counter() - started) < stage.scale.neighbour_seconds:
            tokens += work()
        return {"tokens_per_second": tokens / seconds}

    return action


@contextmanager
def _neighbours(*, are_pinned: bool) -> Iterator[None]:
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
