"""Quantised bases: what 8 and 4 bits save of the memory of a base model, and what they cost in speed and in loss.

Speed is measured in the type that the model loads in on this device. The losses are those of a small model that was
trained on text before: random weights would not show what quantisation takes away.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.models.setup import Setup, count_tokens

PRECISIONS = {"unquantised": "auto", "8bit": "8bit", "4bit": "4bit"}
LENGTH = 512
SAMPLED_TOKENS = 32


def measure_weights(context: Context, setup: Setup) -> Rows:
    """In new processes: the memory of the weights, and the growth of the resident memory while they are loaded."""
    context.describe(f"{setup.model.title} model, bfloat16")

    def turn(precision: str) -> Metrics:
        with _trainer(setup, precision, dtype="bfloat16") as trainer:
            facts: Metrics = trainer.call("facts")
            return facts

    return context.run_rounds({name: partial(turn, each) for name, each in PRECISIONS.items()}, repeats=1)


def measure_speed(context: Context, setup: Setup) -> Rows:
    batch = setup.batch(LENGTH)
    context.describe(f"{setup.model.title} model, rank 32, {count_tokens(batch):,} tokens a step; 1 and 32 samples")

    def turn(trainer: RemoteObject) -> Metrics:
        trained = trainer.call("step", sequences=batch)
        metrics = {"trained_per_second": count_tokens(batch) / trained["seconds"]}
        for count in (1, 32):
            seconds = trainer.call("sample", samples=count, tokens=SAMPLED_TOKENS)
            metrics[f"sampled_{count}_per_second"] = count * SAMPLED_TOKENS / seconds
        return metrics

    with ExitStack() as trainers:
        turns = {
            name: partial(turn, trainers.enter_context(_trainer(setup, precision)))
            for name, precision in PRECISIONS.items()
        }
        return context.run_rounds(turns, repeats=setup.scale.training_rounds)


def measure_losses(context: Context, setup: Setup) -> Rows:
    """The loss per token of text that the model was not trained on, before and after a LoRA run on other text."""
    quick = context.quick
    directory = context.directory / "trained"
    context.describe("a model of 4M parameters, trained on the documentation before")
    with setup.remote("benchmarks.models.quantised_trainers", "Pretraining") as pretraining:
        pretraining.call("train", out=directory, steps=40 if quick else 400)

    def turn(precision: str) -> Metrics:
        with RemoteObject(
            *("benchmarks.models.quantised_trainers", "QuantisedTrainer"),
            directory=directory,
            threads=setup.threads,
            base_precision=precision,
        ) as trainer:
            losses: Metrics = trainer.call("tune", steps=5 if quick else 40)
            return losses

    return context.run_rounds({name: partial(turn, each) for name, each in PRECISIONS.items()}, repeats=1)


def _trainer(setup: Setup, precision: str, *, dtype: str = "auto") -> RemoteObject:
    return setup.remote(
        "benchmarks.models.quantised_trainers", "QuantisedTrainer", base_precision=precision, dtype=dtype
    )
