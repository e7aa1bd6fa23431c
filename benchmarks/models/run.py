"""The models benchmark: ``python benchmarks/models/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Aim, Counts, at_least, at_most, median, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Against, Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, megabytes, times
from benchmarks.models import checkpointing, experts, memory, packing, plan, quantised, training
from benchmarks.models.mixes import MIXES
from benchmarks.models.scale import LENGTHS, QUICK
from benchmarks.models.setup import set_up

EPILOG = """\
With --quick the model has 1M parameters and sequences are short: figures are printed with a ~ and fail the run only if
they could not be measured at all.
"""

RATE = training.RATE


def three_digits(value: float) -> str:
    return f"{value:.3f}"


def of_length(length: int) -> Counts:
    """Quick runs do not have the longer sequences."""
    return Counts.FULL if length in QUICK.lengths else Counts.FULL_ONLY


def speed(length: int) -> Aim:
    return at_least(
        f"{length:,} tokens, tokens/s against PEFT + transformers",
        ratio(RATE, training.row(length, training.OURS), training.row(length, training.PEFT)),
        1.0,
        times,
        counts=of_length(length),
    )


def peak(length: int) -> Aim:
    return at_most(
        f"{length:,} tokens, peak memory against PEFT + transformers",
        ratio(memory.PEAK, training.row(length, training.OURS), training.row(length, training.PEFT)),
        1.0,
        times,
        counts=of_length(length),
    )


TRAINING = Measure(
    "training",
    "Training, by length",
    training.measure_training,
    columns=(Column(RATE, "tokens/s", count, spread=True, against=(Against("PEFT", training.peft_row),)),),
    panel=Bars(RATE),
    ours=tuple(training.row(length, training.OURS) for length in LENGTHS),
    aims=tuple(map(speed, LENGTHS)),
    counts=Counts.FULL,
)

MEMORY = Measure(
    "memory",
    "Peak memory of a step, by length",
    memory.measure_memory,
    columns=(
        Column(memory.PEAK, "growth at the peak", megabytes, against=(Against("PEFT", training.peft_row),)),
        Column("seconds", "the step", duration),
    ),
    panel=Bars(memory.PEAK),
    ours=tuple(training.row(n, who) for n in LENGTHS for who in (training.OURS, memory.RECOMPUTED)),
    aims=tuple(map(peak, LENGTHS)),
    counts=Counts.FULL,
)

PACKING = Measure(
    "packing",
    "Mixed lengths",
    packing.measure_packing,
    columns=(
        Column(RATE, "tokens/s", count, spread=True, against=(Against("padded", packing.padded_row),)),
        Column(packing.CPU_RATE, "per CPU second", count),
    ),
    panel=Bars(RATE),
    ours=tuple(packing.row(mix, packing.PACKED) for mix in MIXES),
    aims=tuple(
        at_least(
            f"{mix}, tokens/s against sorted padding",
            ratio(RATE, packing.row(mix, packing.PACKED), packing.row(mix, packing.PADDED)),
            1.5,
            times,
        )
        for mix in MIXES
    ),
    counts=Counts.FULL,
)

CHECKPOINTING = Measure(
    "checkpointing",
    "Activation checkpointing",
    checkpointing.measure_checkpointing,
    columns=(
        Column(memory.PEAK, "growth at the peak", megabytes, against=(against("kept", checkpointing.KEPT),)),
        Column("seconds", "the step", duration, spread=True, against=(against("kept", checkpointing.KEPT),)),
    ),
    panel=Bars(memory.PEAK),
    ours=(checkpointing.RECOMPUTED,),
    aims=(
        at_most(
            "peak memory with activation checkpointing against without",
            ratio(memory.PEAK, checkpointing.RECOMPUTED, checkpointing.KEPT),
            1 / 3,
            times,
        ),
        at_most(
            "time with activation checkpointing against without",
            ratio("seconds", checkpointing.RECOMPUTED, checkpointing.KEPT),
            1.35,
            times,
        ),
        at_most(
            "peak memory of 8 times the tokens with activation checkpointing, against without",
            ratio(memory.PEAK, checkpointing.RECOMPUTED, checkpointing.SHORT),
            1.0,
            times,
        ),
    ),
    counts=Counts.FULL,
)

EXPERTS = Measure(
    "experts",
    "A mixture of experts",
    experts.measure_experts,
    columns=(
        Column(RATE, "tokens/s", count, spread=True, against=(against("PEFT", training.PEFT),)),
        Column(memory.PEAK, "growth at the peak", megabytes, against=(against("PEFT", training.PEFT),)),
    ),
    panel=Bars(RATE),
    ours=(training.OURS,),
    aims=(
        at_least(
            "a mixture of experts, tokens/s against PEFT + transformers",
            ratio(RATE, training.OURS, training.PEFT),
            1.0,
            times,
        ),
        at_most(
            "a mixture of experts, peak memory against PEFT + transformers",
            ratio(memory.PEAK, training.OURS, training.PEFT),
            1.0,
            times,
        ),
    ),
    counts=Counts.FULL,
)


def predicted(length: int, mode: str) -> tuple[Aim, Aim]:
    share = median(plan.row(length, mode), plan.SHARE)
    title = f"{length:,} tokens, {plan.MODES[mode]}: predicted peak against measured"
    return (
        at_least(title, share, 0.9, times, counts=of_length(length)),
        at_most(title, share, 1.1, times, counts=of_length(length)),
    )


PLAN = Measure(
    "plan",
    "Memory plan against the measured peak of a step",
    plan.measure_plan,
    columns=(
        Column(memory.PEAK, "measured", megabytes),
        Column(plan.PREDICTED, "predicted", megabytes),
        Column(plan.SHARE, "share", times),
    ),
    panel=Bars(plan.SHARE),
    ours=tuple(plan.row(length, mode) for length in LENGTHS for mode in plan.MODES),
    aims=tuple(aim for length in LENGTHS for mode in plan.MODES for aim in predicted(length, mode)),
    counts=Counts.FULL,
)

PLAIN, BITS_8, BITS_4 = quantised.PRECISIONS

BASE_WEIGHTS = Measure(
    "quantised-weights",
    "Quantised base: memory of the weights",
    quantised.measure_weights,
    columns=(
        Column("weight_bytes", "weights", megabytes, against=(against("bfloat16", PLAIN),)),
        Column("load_peak_bytes", "growth while loading", megabytes, against=(against("bfloat16", PLAIN),)),
    ),
    panel=Bars("weight_bytes"),
    ours=(BITS_8, BITS_4),
    aims=(
        at_most("weights of a 4bit base against bfloat16", ratio("weight_bytes", BITS_4, PLAIN), 0.35, times),
        at_most("weights of an 8bit base against bfloat16", ratio("weight_bytes", BITS_8, PLAIN), 0.55, times),
    ),
    counts=Counts.FULL,
)

BASE_SPEED = Measure(
    "quantised-speed",
    "Quantised base: speed",
    quantised.measure_speed,
    columns=(
        Column("trained_per_second", "trained/s", count, spread=True, against=(against("unquantised", PLAIN),)),
        Column("sampled_1_per_second", "sampled/s, 1 sample", count, against=(against("unquantised", PLAIN),)),
        Column("sampled_32_per_second", "sampled/s, 32 samples", count, against=(against("unquantised", PLAIN),)),
    ),
    panel=Bars("trained_per_second"),
    ours=(BITS_8, BITS_4),
    aims=(
        at_least("training on an 8bit base", ratio("trained_per_second", BITS_8, PLAIN), 0.85, times),
        at_least("training on a 4bit base", ratio("trained_per_second", BITS_4, PLAIN), 0.8, times),
    ),
    counts=Counts.FULL,
)

BASE_LOSSES = Measure(
    "quantised-losses",
    "Quantised base: losses per token",
    quantised.measure_losses,
    columns=(
        Column("loss_before", "before", three_digits),
        Column("loss_trained", "after a run, its text", three_digits),
        Column("loss_after", "after a run, other text", three_digits),
    ),
    panel=Bars("loss_before"),
    ours=(BITS_8, BITS_4),
    aims=(
        at_most("loss on an 8bit base against unquantised", ratio("loss_before", BITS_8, PLAIN), 1.01, times),
        at_most("loss on a 4bit base against unquantised", ratio("loss_before", BITS_4, PLAIN), 1.05, times),
        at_most("trained loss on a 4bit base against unquantised", ratio("loss_trained", BITS_4, PLAIN), 1.05, times),
    ),
    counts=Counts.FULL,
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Models",
    help=Help(
        about="What training costs in time and memory, in one process, beside PEFT and transformers.",
        quick="less than a minute: a small model, short sequences",
        disk="2 GB",
        epilog=EPILOG,
    ),
    measures=(TRAINING, MEMORY, PACKING, CHECKPOINTING, EXPERTS, PLAN, BASE_WEIGHTS, BASE_SPEED, BASE_LOSSES),
    set_up=set_up,
    packages=("chockstone", "torch", "transformers", "peft", "trl"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
