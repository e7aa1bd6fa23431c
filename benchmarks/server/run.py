"""The server benchmark: ``python benchmarks/server/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Counts, at_least, at_most, largest, median, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Against, Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import count, duration, megabytes, milliseconds, percent, precise_seconds, seconds, times
from benchmarks.server import (
    answering,
    decoding,
    memory,
    neighbour,
    prefixes,
    replicas,
    sampling,
    sharing,
    starting,
    stepping,
    threads,
    training,
)
from benchmarks.server.setup import set_up

MEMORY_TOLERANCE = 0.10  # of what a run is due: the allocator rounds, and the run's Python objects are small but there
LEFT_BESIDE_A_NEIGHBOUR = 0.40  # of the speed alone: four fifths of the fair share, which is a half
LOST_ALONE = 0.02  # of the speed without neighbours
OF_THE_BETTER = 0.85  # what the default number of threads may cost against the better of one and all

RATE = "tokens_per_second"

EPILOG = """\
With --quick, the small model keeps its size, so the figures of start, overhead, small-sampling and neighbour count, and
those of the loss of a replica. The large models are replaced by small ones: their figures are printed with a ~ and fail
the run only if they could not be measured at all.
"""


def tokens_per_second(base: Against) -> tuple[Column, ...]:
    return (Column(RATE, "tokens/s", count, spread=True, against=(base,)),)


def disorder(rows: Rows) -> float | None:
    """Operations that were lost, and losses that differ."""
    lost, differing = (median(stepping.PIPELINED, metric)(rows) for metric in ("lost", "differing"))
    return None if lost is None or differing is None else lost + differing


START = Measure(
    "start",
    "Starting, from the start of the process",
    starting.measure_starting,
    columns=(
        Column("answers", "API answers", duration),
        Column("ready", "run ready", duration),
        Column("stepped", "first step", duration, spread=True),
    ),
    ours=(starting.SERVER,),
    panel=Bars("stepped"),
    aims=(
        at_most("from start until the API answers", median(starting.SERVER, "answers"), 2.0, seconds),
        at_most("from start to the first trained step", median(starting.SERVER, "stepped"), 15.0, seconds),
    ),
)

MEMORY = Measure(
    "memory",
    "Memory of the worker (PSS)",
    memory.measure_memory,
    columns=(Column("bytes", "bytes", megabytes, spread=True, against=(against("due", memory.DUE),)),),
    ours=(memory.FURTHER,),
    panel=Bars("bytes"),
    aims=(
        at_most(
            "memory of a further run against its adapter, gradient and moments",
            ratio("bytes", memory.FURTHER, memory.DUE),
            1.0 + MEMORY_TOLERANCE,
            times,
        ),
    ),
    counts=Counts.FULL,
)

OVERHEAD = Measure(
    "overhead",
    "Operations through the SDK",
    stepping.measure_stepping,
    columns=(Column("seconds", "each", duration, spread=True, against=(against("optim_step", stepping.STEP),)),),
    ours=(stepping.STEP,),
    panel=Bars("seconds"),
    aims=(
        at_most("optim_step through the SDK", median(stepping.STEP, "seconds"), 0.015, milliseconds),
        at_most("pipelined operations lost or out of order", disorder, 0, count),
    ),
)

TRAINING = Measure(
    "training",
    "Training",
    training.measure_training,
    columns=tokens_per_second(against("bare loop", training.BARE)),
    ours=(training.OURS,),
    panel=Bars(RATE),
    aims=(
        at_least("tokens/s against a bare PyTorch + PEFT loop", ratio(RATE, training.OURS, training.BARE), 0.85, times),
    ),
    counts=Counts.FULL,
)

SHARING = Measure(
    "sharing",
    "Runs at once",
    sharing.measure_sharing,
    columns=tokens_per_second(against("one run", sharing.ONE)),
    ours=(sharing.MANY,),
    panel=Bars(RATE),
    aims=(at_least("tokens/s of four runs in sum against one", ratio(RATE, sharing.MANY, sharing.ONE), 0.95, times),),
    counts=Counts.FULL,
)

SAMPLING = Measure(
    "sampling",
    "Sampling",
    sampling.measure_sampling,
    columns=tokens_per_second(against("one batch", sampling.BATCHED)),
    ours=(sampling.OURS,),
    panel=Bars(RATE),
    aims=(
        at_least(
            "tokens/s against generate, prompt by prompt", ratio(RATE, sampling.OURS, sampling.SINGLY), 5.0, times
        ),
        at_least("tokens/s against generate, one batch", ratio(RATE, sampling.OURS, sampling.BATCHED), 1.0, times),
    ),
    counts=Counts.FULL,
)

SMALL_SAMPLING = Measure(
    "small-sampling",
    "Sampling from a small model",
    sampling.measure_small_sampling,
    columns=tokens_per_second(against("one batch", sampling.BATCHED)),
    ours=(sampling.OURS,),
    panel=Bars(RATE),
    aims=(
        at_least(
            "tokens/s against batched generate, small model", ratio(RATE, sampling.OURS, sampling.BATCHED), 5.0, times
        ),
    ),
)

PREFIXES = Measure(
    "prefixes",
    "Prompts that begin alike",
    prefixes.measure_prefixes,
    columns=(
        *tokens_per_second(against("without the cache", prefixes.COMPUTED)),
        Column("hits", "tokens from the cache", count),
    ),
    ours=(prefixes.CACHED,),
    panel=Bars(RATE),
    aims=(
        at_least(
            "tokens/s of 32 users with one system prompt against no prefix cache",
            ratio(RATE, prefixes.CACHED, prefixes.COMPUTED),
            3.0,
            times,
            counts=Counts.FULL,
        ),
        at_most("answers whose bits differ", median(prefixes.CACHED, "differing"), 0, count),
    ),
)

ANSWERING = Measure(
    "answering",
    "API answers to another client",
    answering.measure_answering,
    columns=(
        Column("p50", "p50", duration),
        Column("p99", "p99", duration),
        Column("p99_all", "p99, stalls in full", duration, spread=True, against=(against("idle", answering.IDLE),)),
        Column("slowest", "slowest", duration),
        Column("seconds", "lasting", duration),
    ),
    ours=(answering.SAVING,),
    panel=Bars("p99_all"),
    aims=(
        at_most("API p99 during a save against idle", ratio("p99_all", answering.SAVING, answering.IDLE), 2.0, times),
    ),
    counts=Counts.FULL,
)

NEIGHBOUR = Measure(
    "neighbour",
    "Beside a neighbour that takes half of the cores",
    neighbour.measure_neighbour,
    columns=(
        Column(RATE, "tokens/s", count, spread=True, against=(Against("alone", neighbour.alone),)),
        Column(neighbour.ASLEEP, "asleep early", percent, spread=True),
    ),
    aims=(
        *(
            at_least(
                f"{workload}, tokens/s {setting} against alone",
                ratio(RATE, neighbour.row(workload, setting), neighbour.row(workload, neighbour.ALONE)),
                LEFT_BESIDE_A_NEIGHBOUR,
                times,
            )
            for workload in neighbour.WORKLOADS
            for setting in (neighbour.BESIDE, neighbour.PINNED)
        ),
        *(
            at_most(
                f"{workload}, speed lost alone by threads that sleep early",
                neighbour.lost_alone(workload),
                LOST_ALONE,
                percent,
                counts=Counts.FULL_ONLY,
            )
            for workload in neighbour.WORKLOADS
        ),
    ),
)

THREADS = Measure(
    "threads",
    "Number of threads",
    threads.measure_threads,
    columns=(
        Column("seconds", "each", duration, spread=True),
        Column(threads.RATE, "per second", count, against=(Against("1 thread", threads.one_thread),)),
    ),
    aims=tuple(
        at_least(
            f"{threads.MODELS[model]}, {workload}, {setting}: default against the better of 1 and all",
            threads.against_better(model, workload, setting),
            OF_THE_BETTER,
            times,
            counts=Counts.FULL,
        )
        for model in threads.MODELS
        for workload in threads.WORKLOADS
        for setting in threads.SETTINGS
    ),
)

DECODING = Measure(
    "decoding",
    "Decoding, over the number of sequences",
    decoding.measure_decoding,
    columns=(
        Column(RATE, "tokens/s", count, spread=True, against=(Against("generate", decoding.batched),)),
        Column(decoding.PER_CPU, "per CPU-second", count, against=(Against("generate", decoding.batched),)),
        Column(decoding.FIRST_TOKEN, "first token", duration),
    ),
    aims=tuple(
        at_least(
            f"{burst.model}, {burst.sequences} × {burst.tokens} tokens: {what} against batched generate",
            ratio(metric, burst.title(decoding.OURS, kind), burst.title(decoding.GENERATE, kind)),
            1.0,
            times,
            counts=Counts.ALWAYS if burst == decoding.SMALL_BURST else Counts.FULL_ONLY,
        )
        for burst in decoding.COMPARED
        for what, metric, kind in (
            ("tokens/s", RATE, ""),
            ("tokens per CPU-second", decoding.PER_CPU, ""),
            ("tokens/s of the first burst", RATE, decoding.FIRST_BURST),
        )
    ),
)

REPLICAS = (
    Measure(
        "replicas",
        "Two worker replicas against one worker",
        replicas.measure_gain,
        columns=(Column(RATE, "tokens/s", count, spread=True, against=(Against("one worker", replicas.one_worker),)),),
        ours=tuple(replicas.row("two replicas", runs) for runs in replicas.RUNS),
        panel=Bars(RATE),
        aims=tuple(
            at_least(
                f"tokens/s of {runs} runs on two replicas against one worker",
                ratio(RATE, replicas.row("two replicas", runs), replicas.row("one worker", runs)),
                1.8,
                times,
            )
            for runs in replicas.RUNS
        ),
        counts=Counts.FULL,
    ),
    Measure(
        "replica-move",
        "Moving a run to another replica",
        replicas.measure_move,
        option="replicas",
        columns=(Column("seconds", "a step", duration, spread=True), Column("move", "of it the move", duration)),
        ours=(replicas.MOVED,),
        panel=Bars("seconds"),
        aims=(at_most("a move of a run of 48 MB", largest(replicas.MOVED, "move"), 1.0, precise_seconds),),
        counts=Counts.FULL,
    ),
    Measure(
        "replica-loss",
        "Killing one replica of two under eight runs",
        replicas.measure_loss,
        option="replicas",
        columns=(
            Column("longest", "longest step", duration, spread=True),
            Column("median", "a step", duration),
            Column("differing", "steps that differ", count),
        ),
        ours=(replicas.KILLED,),
        panel=Bars("longest"),
        aims=(
            at_most("steps that differ after the loss of a replica", largest(replicas.KILLED, "differing"), 0, count),
            at_most("longest step when a replica is lost", largest(replicas.KILLED, "longest"), 30.0, precise_seconds),
        ),
    ),
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Server, through the SDK",
    help=Help(
        about="What the server costs, through the real SDK, beside bare PyTorch, PEFT and transformers.",
        quick="about a minute: smaller models, fewer repeats",
        disk="6 GB",
        epilog=EPILOG,
    ),
    # The memory of the worker comes first of those on a server, while nothing else has grown it.
    measures=(
        START,
        MEMORY,
        OVERHEAD,
        TRAINING,
        SHARING,
        SAMPLING,
        SMALL_SAMPLING,
        PREFIXES,
        ANSWERING,
        NEIGHBOUR,
        THREADS,
        DECODING,
        *REPLICAS,
    ),
    set_up=set_up,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
