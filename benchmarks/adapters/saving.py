"""Saving: how long training is blocked by a save, and when the checkpoint is durable."""

from __future__ import annotations

from time import perf_counter

from benchmarks.adapters.host import Host, Way
from benchmarks.adapters.setup import Setup
from benchmarks.harness.context import Context
from benchmarks.harness.disk import fsync_tree, remove
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn, reason_of


def measure_saving(context: Context, setup: Setup, *, host: Host) -> Rows:
    context.describe(f"{host.name}, {setup.training.size_bytes / 1e6:,.0f} MB")

    def saving(way: Way, *, is_ours: bool) -> Turn:
        def turn() -> Metrics:
            started = perf_counter()
            finish = way.start()
            blocked = perf_counter() - started
            path = finish()
            if not is_ours:
                fsync_tree(path)
            durable = perf_counter() - started
            remove(path)
            return {"blocked": blocked, "durable": durable}

        return turn

    try:
        with host.open(setup.training, context.directory) as ways:
            turns = {host.own_row: saving(ways.own, is_ours=False), host.our_row: saving(ways.ours, is_ours=True)}
            return context.run_rounds(turns, repeats=setup.repeats, memory=setup.memory)
    except ImportError as error:
        return not_run(host, error)


def not_run(host: Host, error: ImportError) -> Rows:
    return {row: Series(failure=reason_of(error)) for row in (host.own_row, host.our_row)}
