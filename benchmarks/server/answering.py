"""Answering: how long small requests take while a large save is in progress, beside an idle server.

Idle stretches and saves alternate, and each stretch is as long as the save before it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.harness.context import Context
from benchmarks.harness.disk import size_of
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.live.client import batch_of, new_run, session, step
from benchmarks.live.server import KEY
from benchmarks.server.probe import INTERVAL_SECONDS, Answer
from benchmarks.server.scale import WHOLE
from benchmarks.server.setup import Setup

IDLE = "idle"
SAVING = "a save in progress"
FIRST_STRETCH_SECONDS = 3.0
SHORTEST_STRETCH_SECONDS = 1.0
SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    row: str
    begin: float  # on the system's monotonic clock
    end: float


def measure_answering(context: Context, setup: Setup) -> Rows:
    model = setup.models[WHOLE]
    context.describe(f"{model.title} model trained whole, saved with its moments")
    with session(setup.server.url) as service:
        run = new_run(service, model.name, rank=0)
        step(run, batch_of(model.draw(1, 17, seed=8)))  # now there are moments to save
        with RemoteObject("benchmarks.server.probe", "Probe", url=setup.server.url, key=KEY) as probe:
            probe.call("start")
            windows: list[Window] = []
            stretch = FIRST_STRETCH_SECONDS
            for number in range(setup.scale.saves + 1):
                context.say("warm-up save" if number == 0 else f"save {number} of {setup.scale.saves}")
                os.sync()
                time.sleep(SETTLE_SECONDS)
                idle = _window(IDLE, partial(time.sleep, stretch))
                saving = _window(SAVING, lambda: run.save_state("again", overwrite=True).result())
                stretch = max(SHORTEST_STRETCH_SECONDS, saving.end - saving.begin)
                if number:
                    windows += [idle, saving]
            answers = probe.call("stop")
    rows = {IDLE: Series(), SAVING: Series()}
    for window in windows:
        rows[window.row].add(_metrics(window, answers))
    rows[SAVING].note = f"{size_of(setup.server.checkpoints) / 1e9:.2f} GB"
    return rows


def _window(row: str, action: Callable[[], object]) -> Window:
    begin = time.monotonic()
    action()
    return Window(row, begin, time.monotonic())


def _metrics(window: Window, answers: list[Answer]) -> Metrics:
    """Of every request that was under way in the window."""
    taken = [seconds for sent, seconds in answers if sent < window.end and sent + seconds > window.begin]
    if not taken:
        raise RuntimeError("not one request was under way in a window: the probe has stopped")
    everyone = with_omitted(taken)
    return {
        "seconds": window.end - window.begin,
        "p50": percentile(taken, 0.50),
        "p99": percentile(taken, 0.99),
        "p99_all": percentile(everyone, 0.99),
        "slowest": max(taken),
    }


def with_omitted(taken: list[float]) -> list[float]:
    """Adds the requests that would have been sent while one was waited for, so that a long stall counts in full."""
    everyone = list(taken)
    for seconds in taken:
        waiting = seconds - INTERVAL_SECONDS
        while waiting > 0:
            everyone.append(waiting)
            waiting -= INTERVAL_SECONDS
    return everyone


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(fraction * len(ordered)))) - 1]
