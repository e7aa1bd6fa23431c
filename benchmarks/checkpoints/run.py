"""The checkpoint benchmark: ``python benchmarks/checkpoints/run.py --help``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.checkpoints import memory, ours, restoring, saving, scaling, stalling, volume
from benchmarks.checkpoints.curves import Curves
from benchmarks.checkpoints.setup import Setup, set_up
from benchmarks.harness.aims import Aim, Counts, Value, at_least, at_most, divide, median, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure, against
from benchmarks.harness.plot import Bars, draw_grid
from benchmarks.harness.results import Results
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import count, duration, exponent, times, whole_megabytes

MEMORY_SLACK = 0.05
LINEAR_EXPONENT = 1.15  # thirteen times the bytes may take at most half as long again per byte
COUNTS = {"L": Counts.ALWAYS, "F": Counts.FULL}  # in a quick run L has its full size and all repeats; F is a stand-in
TITLE = "Checkpoints"

EPILOG = """\
With --quick, L keeps its size and at least five repeats, so its figures count. F is replaced by a small
state of the same structure and scaling is cut short: their figures are printed with a ~ and fail the run only if they
could not be measured at all. Bytes written are exact at any size and always count. The slowest peers (gzip, DCP in a
process) do not take part.
"""

logging.disable(logging.INFO)  # here, so that DCP's daemon, which imports this file again, logs nothing either


def percentage(value: float) -> str:
    return f"{value:.2f} %"


def timing_columns(limit: str) -> tuple[Column, ...]:
    multiples = (against("limit", limit), against("ours", ours.NAME))
    return (Column("seconds", "median", duration, spread=True, against=multiples),)


def at_most_limit(title: str, limit: str, bound: float) -> Aim:
    return at_most(title, ratio("seconds", ours.NAME, limit), bound, times)


def faster_than(title: str, peer: str, bound: float) -> Aim:
    return at_least(f"{title} {peer}", ratio("seconds", peer, ours.NAME), bound, times)


def best_peer(metric: str) -> Value:
    """The lowest median of those who save in the background, but for ours and the limit."""

    def value(rows: Rows) -> float | None:
        others = [series for name, series in rows.items() if name not in (ours.NAME, stalling.LIMIT)]
        return min((found for series in others if (found := series.median(metric)) is not None), default=None)

    return value


def save(state: str, limit_bound: float, peer_bounds: dict[str, float]) -> Measure[Setup]:
    return Measure(
        "save",
        "Durable save",
        partial(saving.measure_saving, state=state),
        columns=timing_columns(saving.LIMIT),
        aims=(
            at_most_limit("durable save against O_DIRECT write", saving.LIMIT, limit_bound),
            *(faster_than("durable save faster than", *bound) for bound in peer_bounds.items()),
        ),
        ours=(ours.NAME,),
        panel=Bars("seconds", is_ranked=True, limit=saving.LIMIT),
        case=state,
        counts=COUNTS[state],
    )


def stall(state: str, limit_bound: float, further: Sequence[Aim] = ()) -> Measure[Setup]:
    return Measure(
        "stall",
        "save() blocks the caller",
        partial(stalling.measure_stalling, state=state),
        columns=(
            *timing_columns(stalling.LIMIT),
            Column("durable", "durable after", duration, against=(against("ours", ours.NAME),)),
        ),
        aims=(
            at_most_limit("save() blocks against memcpy", stalling.LIMIT, limit_bound),
            at_most(
                "save() blocks against the shortest async peer",
                lambda rows: divide(median(ours.NAME, "seconds")(rows), best_peer("seconds")(rows)),
                1.0,
                times,
            ),
            *further,
        ),
        ours=(ours.NAME,),
        panel=Bars("seconds", is_ranked=True, limit=stalling.LIMIT),
        case=state,
        counts=COUNTS[state],
    )


def restore(state: str, limit_bound: float, peer_bounds: dict[str, float]) -> Measure[Setup]:
    return Measure(
        "restore",
        "Restore from a cold file into existing tensors (ours verified, peers not)",
        partial(restoring.measure_restoring, state=state),
        columns=timing_columns(restoring.LIMIT),
        aims=(
            at_most_limit("verified restore against O_DIRECT read", restoring.LIMIT, limit_bound),
            *(faster_than("verified restore faster than unverified", *bound) for bound in peer_bounds.items()),
        ),
        ours=(ours.NAME,),
        panel=Bars("seconds", is_ranked=True, limit=restoring.LIMIT),
        case=state,
        counts=COUNTS[state],
    )


def written(state: str) -> Measure[Setup]:
    return Measure(
        "bytes",
        "Bytes of one save",
        partial(volume.measure_volume, state=state),
        columns=(
            Column("written_bytes", "written", count),
            Column("beyond_percent", "beyond the state", percentage),
            Column("file_bytes", "left on disk", count),
        ),
        aims=(at_most("bytes written beyond the state", median(ours.NAME, "beyond_percent"), 1.0, percentage),),
        ours=(ours.NAME,),
        case=state,
    )


SAVE_L = save("L", 2.0, {"safetensors": 1.5, "DCP": 7.0, "directory, then tar": 5.0, "orbax": 7.0})
SAVE_F = save("F", 1.6, {"safetensors": 3.0, "DCP": 3.5, "directory, then tar": 5.0, "orbax": 7.0})
STALL_L = stall("L", 2.5)
STALL_F = stall(
    "F",
    1.2,
    [
        at_least(
            "durable sooner than the fastest async peer",
            lambda rows: divide(best_peer("durable")(rows), median(ours.NAME, "durable")(rows)),
            3.0,
            times,
        )
    ],
)
RESTORE_L = restore("L", 2.0, {})
RESTORE_F = restore("F", 1.3, {"safetensors": 1.7, "DCP": 3.0})

MEMORY = Measure(
    "memory",
    "Extra host memory of a save in the background",
    partial(memory.measure_memory, state="F"),
    columns=(Column("extra_bytes", "peak above before", whole_megabytes), Column("states", "× state", "{:.2f}".format)),
    aims=(at_most("extra host memory in snapshots", median(ours.NAME, "states"), 1.0 + MEMORY_SLACK, times),),
    ours=(ours.NAME,),
    case="F",
    counts=COUNTS["F"],
    option="stall",
)

SCALING_COLUMNS = (
    Column("save", "durable save", duration),
    Column("save_per_mb", "per MB", duration),
    Column("restore", "verified restore", duration),
    Column("restore_per_mb", "per MB", duration),
)


def scaling_aims(of_what: str) -> list[Aim]:
    return [
        at_most(f"growth of {metric} with the {of_what}", scaling.growth_exponent(metric), LINEAR_EXPONENT, exponent)
        for metric in ("save", "restore")
    ]


SCALING_SIZE = Measure(
    "scaling",
    "Cost against size",
    partial(scaling.measure_scaling, axis="size"),
    columns=SCALING_COLUMNS,
    aims=scaling_aims("size"),
    panel=Curves("MB", divisor=1e6, straight=True),
    counts=Counts.FULL,
    case="size",
)
SCALING_COUNT = Measure(
    "scaling",
    "Cost against the number of tensors",
    partial(scaling.measure_scaling, axis="count"),
    columns=SCALING_COLUMNS,
    aims=scaling_aims("number of tensors"),
    panel=Curves("tensors"),
    counts=Counts.FULL,
    case="count",
)


def draw(_measures: Sequence[Measure[Setup]], results: Results, path: Path) -> None:
    grid = ((SAVE_F, STALL_F, RESTORE_F, SCALING_SIZE), (SAVE_L, STALL_L, RESTORE_L, SCALING_COUNT))
    draw_grid(grid, results, path, title=TITLE, width_inches=21)


BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title=TITLE,
    help=Help(
        about="What a checkpoint costs: ours beside its peers and the limits of this machine.",
        quick="under a minute: smaller F, shorter scaling",
        disk="15 GB",
        epilog=EPILOG,
    ),
    measures=(
        *(SAVE_L, STALL_L, RESTORE_L, written("L")),
        *(SAVE_F, STALL_F, RESTORE_F, written("F"), MEMORY),
        *(SCALING_SIZE, SCALING_COUNT),
    ),
    set_up=set_up,
    packages=(*("torch", "safetensors", "torchsnapshot", "orbax-checkpoint", "jax", "numpy", "xxhash", "chockstone"),),
    has_servers=False,
    controls_memory=True,
    hidden_logs=logging.INFO,
    draw=draw,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
