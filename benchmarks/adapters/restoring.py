"""Restoring: seconds from files on the disk to the live model and optimizer. Ours verifies every byte that it reads."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from benchmarks.adapters.host import Host, Way
from benchmarks.adapters.saving import not_run
from benchmarks.adapters.setup import Setup
from benchmarks.harness.context import Context
from benchmarks.harness.disk import evict, remove
from benchmarks.harness.rounds import Metrics, Rows, Turn


def measure_restoring(context: Context, setup: Setup, *, host: Host) -> Rows:
    context.describe(f"{host.name}, {setup.training.size_bytes / 1e6:,.0f} MB")
    training = setup.training

    def restoring(way: Way, path: Path) -> Turn:
        def turn() -> Metrics:
            training.clear()
            evict(path)
            started = perf_counter()
            way.restore(path)
            return {"seconds": perf_counter() - started}

        return turn

    def check(_name: str) -> str | None:
        same = training.digest() == setup.digest
        return None if same else "the restored tensors differ from the saved ones"

    try:
        with host.open(training, context.directory) as ways:
            context.say("writing")
            paths = {host.own_row: ways.own.start()(), host.our_row: ways.ours.start()()}
            turns = {
                host.own_row: restoring(ways.own, paths[host.own_row]),
                host.our_row: restoring(ways.ours, paths[host.our_row]),
            }
            rows = context.run_rounds(turns, repeats=setup.repeats, memory=setup.memory, check=check)
            for path in paths.values():
                remove(path)
            return rows
    except ImportError as error:
        return not_run(host, error)
