"""The adapter benchmark: ``python benchmarks/adapters/run.py --help``."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.adapters import accelerate, dcp, hf_trainer, lightning, ray_train, torchtitan
from benchmarks.adapters.host import Host
from benchmarks.adapters.restoring import measure_restoring
from benchmarks.adapters.saving import measure_saving
from benchmarks.adapters.setup import Setup, set_up
from benchmarks.harness.aims import Counts, Value, at_most, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import duration, times

HOSTS = (  # one line per host
    dcp.SYNC,
    dcp.ASYNC,
    hf_trainer.HOST,
    lightning.HOST,
    accelerate.HOST,
    torchtitan.SYNC,
    torchtitan.ASYNC,
    ray_train.HOST,
)

EPILOG = """\
With --quick the training is a small one of the same structure: its figures are printed with a ~ and fail the run only
if they could not be measured at all. --only names hosts.
"""

logging.disable(logging.INFO)  # here, so that processes that import this file again log nothing either


def save(host: Host) -> Measure[Setup]:
    own = (against("the host's own", host.own_row),)
    return Measure(
        "save",
        "A save blocks training, and is durable",
        partial(measure_saving, host=host),
        columns=(
            Column("blocked", "training blocked", duration, spread=True, against=own),
            Column("durable", "durable after", duration, spread=True, against=own),
        ),
        aims=(
            at_most("training blocked, against the host's own way", _against("blocked", host), 1.0, times),
            at_most("until durable, against the host's own way", _against("durable", host), 1.0, times),
        ),
        ours=(host.our_row,),
        panel=Bars("durable"),
        case=host.name,
        counts=Counts.FULL,
        option=host.name,
    )


def restore(host: Host) -> Measure[Setup]:
    return Measure(
        "restore",
        "Restore from cold files (ours verified)",
        partial(measure_restoring, host=host),
        columns=(
            Column("seconds", "median", duration, spread=True, against=(against("the host's own", host.own_row),)),
        ),
        aims=(at_most("verified restore, against the host's own way", _against("seconds", host), 1.0, times),),
        ours=(host.our_row,),
        panel=Bars("seconds"),
        case=host.name,
        counts=Counts.FULL,
        option=host.name,
    )


def _against(metric: str, host: Host) -> Value:
    return ratio(metric, host.our_row, host.own_row)


BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Adapters: the host's own way beside chockstone",
    help=Help(
        about="Saving and restoring through training frameworks: their own way beside Chockstone.",
        quick="under a minute for each host: a smaller training and fewer rounds",
        disk="8 GB",
        epilog=EPILOG,
    ),
    measures=tuple(make(host) for host in HOSTS for make in (save, restore)),
    set_up=set_up,
    packages=("chockstone", *dict.fromkeys(host.package for host in HOSTS)),
    has_servers=False,
    controls_memory=True,
    hidden_logs=logging.WARNING,
    panels_per_row=2,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
