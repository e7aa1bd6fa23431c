"""Packing: tokens per second on mixed lengths, beside sorted padding and beside PEFT with padded micro-batches."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.models.mixes import MIXES, Sequence
from benchmarks.models.setup import LOSS_TOLERANCE, Setup, count_tokens
from benchmarks.models.training import RATE

CPU_RATE = "tokens_per_cpu_second"
PACKED, PADDED = "packed", "sorted and padded"
PEFT = "PEFT, padded micro-batches of 4"


def row(mix: str, contestant: str) -> str:
    return f"{mix}, {contestant}"


def padded_row(name: str) -> str:
    """The row of sorted padding for the same mix."""
    return row(name.partition(", ")[0], PADDED)


def measure_packing(context: Context, setup: Setup) -> Rows:
    count = setup.scale.mixed_sequences
    context.describe(f"{setup.model.title} model, rank 32, {count} sequences a step")
    rows: Rows = {}
    losses: dict[str, float] = {}
    with setup.own_trainer() as packed, setup.own_trainer(packs=False) as padded, setup.peft_trainer() as peft:
        for mix, make in MIXES.items():
            batch = make(count, vocab_size=setup.model.shape.vocab_size, seed=5)
            turns = {
                row(mix, PACKED): _turn(packed, batch, row(mix, PACKED), losses),
                row(mix, PADDED): _turn(padded, batch, row(mix, PADDED), losses),
                row(mix, PEFT): _turn(peft, batch, row(mix, PEFT), losses),
            }
            rows |= context.run_rounds(turns, repeats=setup.scale.mixed_rounds)
    for mix in MIXES:
        found, expected = (losses.get(row(mix, who)) for who in (PACKED, PADDED))
        if found is not None and expected is not None and abs(found / expected - 1) > LOSS_TOLERANCE:
            rows[row(mix, PACKED)].failure = f"not the same work: first losses {found} and {expected}"
    return rows


def _turn(trainer: RemoteObject, batch: list[Sequence], name: str, losses: dict[str, float]) -> Callable[[], Metrics]:
    def turn() -> Metrics:
        answer = trainer.call("step", sequences=batch)
        losses.setdefault(name, answer["loss"])
        return {RATE: count_tokens(batch) / answer["seconds"], CPU_RATE: count_tokens(batch) / answer["cpu_seconds"]}

    return turn
