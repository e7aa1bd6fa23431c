"""Journalling: what a step through the SDK takes with and without a journal, synced, and with recovery archives.

One server for each setting, all of them up at once and idle but for the one whose turn it is. Two have no
journal: what they differ by is what this machine cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

import tinker

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, compare_by_round
from benchmarks.live.client import RANK, batch_of, new_run, session, step
from benchmarks.live.server import LiveServer
from benchmarks.recovery.scale import LARGE, SMALL, Load
from benchmarks.recovery.setup import Setup, new_server

OFF = "no journal"
AGAIN = "no journal, another server"
ALONE = "journal"
SYNCED = "journal, synced"
ARCHIVED = "journal and recovery archives (the default)"
BY_HAND = "by hand: torch.save each step"
BY_HAND_SYNCED = "by hand: torch.save and fsync each step"

_NO_ARCHIVES = ("--recovery-steps=1000000", "--recovery-replay=30d")
_FLAGS = {
    OFF: ("--journal=off",),
    AGAIN: ("--journal=off",),
    ALONE: ("--journal=on", *_NO_ARCHIVES),
    SYNCED: ("--journal=synced", *_NO_ARCHIVES),
    ARCHIVED: (),
}
_AGAINST = {AGAIN: OFF, ALONE: OFF, SYNCED: OFF, ARCHIVED: ALONE}
_SAVES_BY_HAND = 10  # in one turn


def measure_journalling(context: Context, setup: Setup) -> Rows:
    return _measure(context, setup, SMALL, setup.scale.small)


def measure_large_journalling(context: Context, setup: Setup) -> Rows:
    return _measure(context, setup, LARGE, setup.scale.large)


def _measure(context: Context, setup: Setup, size: str, load: Load) -> Rows:
    model = setup.models[size]
    context.describe(f"{model.title} model, rank {RANK}, {load.batch} a step")
    batch = batch_of(model.draw(load.sequences, load.tokens + 1, seed=5))
    with ExitStack() as stack:
        context.say("starting servers")
        servers = {
            name: stack.enter_context(new_server(context, model, f"server-{number}", *flags))
            for number, (name, flags) in enumerate(_FLAGS.items())
        }
        archives = _Archives(servers[ARCHIVED])
        turns: dict[str, _Turn] = {}
        for name, server in servers.items():
            context.say(f"first step: {name}")
            run = new_run(stack.enter_context(session(server.url)), model.name, rank=RANK)
            step(run, batch)  # now there are moments to keep
            turns[name] = _Turn(server, run, batch, load.steps, after=archives.look)
        saved = turns[OFF].run.save_state("state").result().path
        by_hand = stack.enter_context(
            RemoteObject(
                "benchmarks.recovery.by_hand",
                "ByHand",
                archive=str(servers[OFF].archive_of(saved)),
                directory=str(context.directory / "by-hand"),
            )
        )
        rows = context.run_rounds(
            {
                **turns,
                BY_HAND: lambda: {"added": by_hand.call("save", count=_SAVES_BY_HAND, synced=False)},
                BY_HAND_SYNCED: lambda: {"added": by_hand.call("save", count=_SAVES_BY_HAND, synced=True)},
            },
            repeats=load.rounds,
        )
    _compare(rows)
    rows[ARCHIVED].note += f"; {len(archives.seen)} archives in {load.rounds + 1} turns of {load.steps} steps"
    if not archives.seen and not context.quick:
        rows[ARCHIVED].failure = "no recovery archive was taken: the turns are too short to say what one costs"
    return rows


@dataclass(frozen=True, slots=True)
class _Turn:
    """Steps of one run. Each is sent as the SDK recommends, and the next when it is answered."""

    server: LiveServer
    run: tinker.TrainingClient
    batch: list[tinker.types.Datum]
    steps: int
    after: Callable[[], None]

    def __call__(self) -> Metrics:
        began, began_cpu = perf_counter(), self._cpu_seconds()
        for _ in range(self.steps):
            step(self.run, self.batch)
        seconds, cpu = perf_counter() - began, self._cpu_seconds() - began_cpu
        self.after()
        return {"seconds": seconds / self.steps, "cpu": cpu / self.steps}

    def _cpu_seconds(self) -> float:
        """Of the process that serves the API and writes the journal: the worker does the same with and without one."""
        times = self.server.process.cpu_times()
        return float(times.user + times.system)


class _Archives:
    """Counts the recovery archives of one server. Looks after every turn, because the server deletes older ones."""

    def __init__(self, server: LiveServer) -> None:
        self._store = server.checkpoints
        self.seen: set[str] = set()

    def look(self) -> None:
        self.seen |= {path.name for path in self._store.glob("*/recovery/*") if not path.name.startswith(".")}


def _compare(rows: Rows) -> None:
    """What each adds to a step, in seconds and as a share of it. By hand, the step itself is not part of the turn."""
    for name, base in _AGAINST.items():
        compare_by_round(rows, name, base)
    step_seconds = rows[OFF].median("seconds")
    for name in (BY_HAND, BY_HAND_SYNCED):
        rows[name].note = f"against: {OFF}"
        if step_seconds is not None:
            rows[name].samples["share"] = [added / step_seconds for added in rows[name].samples.get("added", [])]
