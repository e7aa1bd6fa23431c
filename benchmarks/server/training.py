"""Training: tokens per second of LoRA training, ours through the SDK beside a bare loop on the same batch."""

from __future__ import annotations

from time import perf_counter

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.live.client import LEARNING_RATE, RANK, batch_of, new_run, session, step
from benchmarks.server.scale import LARGE
from benchmarks.server.setup import Setup

OURS = "chockstone, through the SDK"
BARE = "bare PyTorch + PEFT loop"
LOSS_TOLERANCE = 1e-4


def measure_training(context: Context, setup: Setup) -> Rows:
    """Before a first step a LoRA adds nothing, so both must begin with the loss of the base model."""
    model, scale = setup.models[LARGE], setup.scale
    sequences = model.draw(scale.batch_sequences, scale.sequence_tokens + 1, seed=3)
    size = f"{scale.batch_sequences} × {scale.sequence_tokens} tokens a step"
    context.describe(f"{model.title} model, rank {RANK}, {size}")
    batch = batch_of(sequences)
    tokens = scale.steps_per_turn * scale.batch_sequences * scale.sequence_tokens
    first_losses: dict[str, float] = {}
    setup.baselines.call("prepare_training", directory=model.directory, rank=RANK, learning_rate=LEARNING_RATE)
    with session(setup.server.url) as service:
        run = new_run(service, model.name)

        def ours() -> Metrics:
            started = perf_counter()
            losses = [step(run, batch) for _ in range(scale.steps_per_turn)]
            seconds = perf_counter() - started
            first_losses.setdefault(OURS, losses[0])
            return {"tokens_per_second": tokens / seconds}

        def theirs() -> Metrics:
            answer = setup.baselines.call("train", sequences=sequences, steps=scale.steps_per_turn)
            first_losses.setdefault(BARE, answer["loss"])
            return {"tokens_per_second": tokens / answer["seconds"]}

        rows = context.run_rounds({OURS: ours, BARE: theirs}, repeats=scale.training_rounds)
    if len(first_losses) == 2 and abs(first_losses[OURS] / first_losses[BARE] - 1) > LOSS_TOLERANCE:
        rows[OURS].failure = f"not the same work: first losses {first_losses}"
    return rows
