"""Training: tokens per second of LoRA steps on sequences of several lengths, beside PEFT on the same batches.

At one length, the SFTTrainer of TRL takes part, where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.models.mixes import Sequence
from benchmarks.models.setup import LOSS_TOLERANCE, Setup, count_tokens

OURS, PEFT, TRL = "chockstone", "PEFT + transformers", "TRL's SFTTrainer"
TRL_LENGTH = 512
RATE = "tokens_per_second"


def row(length: int, contestant: str) -> str:
    return f"{length:,} tokens, {contestant}"


def peft_row(name: str) -> str:
    """The row of PEFT for the same length."""
    return f"{name.partition(' tokens, ')[0]} tokens, {PEFT}"


def measure_training(context: Context, setup: Setup) -> Rows:
    """Before a first step a LoRA adds nothing, so both begin with the loss of the base model."""
    context.describe(f"{setup.model.title} model, rank 32, at least {setup.scale.step_tokens:,} tokens a step")
    losses: dict[str, float] = {}
    rows: Rows = {}
    with setup.own_trainer() as own, setup.peft_trainer() as peft:
        for length in setup.scale.lengths:
            batch = setup.batch(length)
            turns = {
                row(length, OURS): _turn(own, batch, row(length, OURS), losses),
                row(length, PEFT): _turn(peft, batch, row(length, PEFT), losses),
            }
            if length == TRL_LENGTH:
                turns[row(length, TRL)] = partial(_trl_turn, setup, batch)
            rows |= context.run_rounds(turns, repeats=setup.scale.training_rounds)
    length = setup.scale.lengths[0]  # later ones begin with different numbers of steps
    ours, theirs = (losses.get(row(length, who)) for who in (OURS, PEFT))
    if ours is not None and theirs is not None and abs(ours / theirs - 1) > LOSS_TOLERANCE:
        rows[row(length, OURS)].failure = f"not the same work: first losses {ours} and {theirs}"
    return rows


def _trl_turn(setup: Setup, batch: list[Sequence]) -> Metrics:
    """Raises RemoteFailed where TRL is not installed; the row then says so."""
    with setup.remote("benchmarks.models.trl_trainer", "TrlTrainer") as trl:
        return {RATE: count_tokens(batch) / trl.call("step", sequences=batch)["seconds"]}


def _turn(trainer: RemoteObject, batch: list[Sequence], name: str, losses: dict[str, float]) -> Callable[[], Metrics]:
    def turn() -> Metrics:
        answer = trainer.call("step", sequences=batch)
        losses.setdefault(name, answer["loss"])
        return {RATE: count_tokens(batch) / answer["seconds"]}

    return turn
