"""The endpoint benchmark: ``python benchmarks/endpoint/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.endpoint import peers, talking
from benchmarks.endpoint.setup import STREAMS, set_up
from benchmarks.harness.aims import Counts, at_least, at_most, median, paired_ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, times

RATE = "tokens_per_second"
SLOWER = 1.1  # than the SDK of Tinker, at most
AGAINST = (
    against("Tinker SDK", talking.TINKER),
    against("vllm", peers.VLLM),
    against("transformers", peers.TRANSFORMERS),
)

TALKING = Measure(
    "talking",
    "Through the SDK of OpenAI and through that of Tinker",
    talking.measure_talking,
    columns=(
        Column(RATE, "tokens/s", count, spread=True, against=AGAINST),
        Column("first_seconds", "first token", duration, against=AGAINST),
    ),
    ours=(talking.WHOLE, talking.STREAMED),
    panel=Bars(RATE),
    aims=(
        at_least("tokens/s, whole answers", paired_ratio(RATE, talking.WHOLE, talking.TINKER), 1 / SLOWER, times),
        at_least("tokens/s, streams", paired_ratio(RATE, talking.STREAMED, talking.TINKER), 1 / SLOWER, times),
        at_most(
            "time to the first token of a stream",
            paired_ratio("first_seconds", talking.STREAMED, talking.TINKER),
            SLOWER,
            times,
        ),
    ),
    counts=Counts.FULL,
)

STREAMS_MEASURE = Measure(
    "streams",
    "Small requests beside many streams",
    talking.measure_streams,
    columns=(
        Column("p50", "p50", duration),
        Column("p99", "p99", duration, spread=True, against=(against("no stream", talking.IDLE),)),
        Column("loop_p99", "loop late, p99", duration, spread=True),
    ),
    ours=(talking.BUSY,),
    panel=Bars("p99"),
    aims=(
        at_most(f"p99 of small requests beside {STREAMS} streams", median(talking.BUSY, "p99"), 0.010, duration),
        at_most(
            f"p99 of the event loop's lateness beside {STREAMS} streams",
            median(talking.BUSY, "loop_p99"),
            0.010,
            duration,
        ),
    ),
    counts=Counts.FULL,
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Talking to a checkpoint",
    help=Help(
        about="What the endpoint of OpenAI costs beside the SDK of Tinker, on the same server.",
        quick="less than a minute: a small model and few rounds",
        disk="1 GB",
        epilog="With --quick the model is a small one, and no figure counts.\n",
    ),
    measures=(TALKING, STREAMS_MEASURE),
    set_up=set_up,
    panels_per_row=2,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
