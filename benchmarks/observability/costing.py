"""Costing: what step history, metrics and traces add to a training step through the SDK.

One server, one run, and turns in which parts of it are switched off and on. Turns are short: the speed of the machine
drifts within seconds, and contestants of one round should see the same machine. The time of a step is the median of a
turn. A turn with traces ends with an export, four times as often as a server exports; its steps share the time.

Two contestants have everything off: what they differ by is what this machine cannot tell apart. Besides the time of a
step, the CPU time of the process that serves is counted, which other processes disturb less; and, in steps with all
parts on, the CPU time of each part alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.live.client import batch_of, new_run, session, step
from benchmarks.live.server import LiveServer
from benchmarks.observability.cpu_clock import cpu_seconds
from benchmarks.observability.scale import RANK
from benchmarks.observability.setup import Setup
from benchmarks.observability.switched_server import (
    HISTORY,
    METRICS,
    SOCKET,
    TRACING,
    begin_count,
    counted,
    export,
    switch,
)

OFF = "all off"
AGAIN = "all off, once more"
ALL = "history, metrics and traces"
TURNS: dict[str, tuple[str, ...]] = {
    OFF: (),
    HISTORY: (HISTORY,),
    METRICS: (METRICS,),
    TRACING: (TRACING,),
    ALL: (HISTORY, METRICS, TRACING),
    AGAIN: (),
}
COUNTED = "counted"
_LATE_SECONDS = 6.0  # OpenTelemetry exports every five seconds
_PROGRAM = ("-m", "benchmarks.observability.switched_server")
_ROOT = str(Path(__file__).resolve().parents[2])


def measure_cost(context: Context, setup: Setup) -> Rows:
    scale, model = setup.scale, setup.model
    context.describe(f"{model.title} model, rank {RANK}, {scale.sequences} × {scale.tokens} tokens a step")
    batch = batch_of(model.draw(scale.sequences, scale.tokens + 1, seed=5))
    with ExitStack() as stack:
        collector = stack.enter_context(RemoteObject("benchmarks.observability.collector", "Collector"))
        place = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "switches"  # a short path, as sockets need
        environment = {
            SOCKET: str(place),
            "OTEL_EXPORTER_OTLP_ENDPOINT": str(collector.call("url")),
            "PYTHONPATH": _ROOT,
        }
        server = stack.enter_context(setup.new_server("costs", program=_PROGRAM, environment=environment))
        run = new_run(stack.enter_context(session(server.url)), model.name, rank=RANK)
        step(run, batch)
        rows = context.run_rounds(
            {name: _Turn(server, place, parts, run, batch, scale.steps) for name, parts in TURNS.items()},
            repeats=scale.rounds,
        )
        context.say("counting CPU time")
        rows |= _count(place, run, batch, scale.counted_steps)
        if not collector.call("taken"):
            rows[TRACING].failure = "no span was exported"
    _compare(rows)
    return rows


@dataclass(frozen=True, slots=True)
class _Turn:
    server: LiveServer
    place: Path
    parts: Sequence[str]
    run: tinker.TrainingClient
    batch: list[tinker.types.Datum]
    steps: int

    def __call__(self) -> Metrics:
        switch(self.place, self.parts)
        step(self.run, self.batch)
        began_cpu = cpu_seconds(self.server)
        seconds = [_seconds(lambda: step(self.run, self.batch)) for _ in range(self.steps)]
        exporting = _seconds(lambda: export(self.place)) if TRACING in self.parts else 0.0
        cpu = cpu_seconds(self.server) - began_cpu
        return {"seconds": median(seconds) + exporting / self.steps, "cpu": cpu / self.steps}


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _count(place: Path, run: tinker.TrainingClient, batch: list[tinker.types.Datum], steps: int) -> Rows:
    """The CPU time of each part in steps with all of them on, and its share of such a step."""
    begin_count(place)
    step(run, batch)
    began = perf_counter()
    begin_count(place)
    for _ in range(steps):
        step(run, batch)
    step_seconds = (perf_counter() - began) / steps
    sleep(_LATE_SECONDS)  # for threads that write and export what the last steps left
    found = counted(place)
    found[ALL] = (sum(seconds for seconds, _ in found.values()), sum(calls for _, calls in found.values()))
    return {
        f"{part}, {COUNTED}": Series(
            {
                "cpu_added": [seconds / steps],
                "cpu_share": [seconds / steps / step_seconds],
                "calls": [calls / steps],
            }
        )
        for part, (seconds, calls) in found.items()
    }


def _compare(rows: Rows) -> None:
    """By round: what each adds to the time of a step, and to its CPU time, both as a share of a step with all off."""
    base = rows[OFF].samples
    for name, series in rows.items():
        if name not in TURNS or name == OFF or series.failure is not None or rows[OFF].failure is not None:
            continue
        series.note = f"against: {OFF}"
        series.samples["share"] = [
            on / off - 1 for on, off in zip(series.samples["seconds"], base["seconds"], strict=True)
        ]
        added = [on - off for on, off in zip(series.samples["cpu"], base["cpu"], strict=True)]
        series.samples["cpu_added"] = added
        series.samples["cpu_share"] = [more / step for more, step in zip(added, base["seconds"], strict=True)]
