"""Training: tokens per second of LoRA training, ours through the SDK beside a bare loop on the same batch."""

from __future__ import annotations

from time import perf_counter

from benchmarks.checkpoints.rounds import Metrics, Series
from benchmarks.server.client import LEARNING_RATE, batch_of, new_run, session, step
from benchmarks.server.models import LARGE
from benchmarks.server.scale import RANK
from benchmarks.server.stage import Stage

OURS = "chockstone, through the SDK"
BARE = "bare PyTorch + PEFT loop"
LOSS_TOLERANCE = 1e-4


def measure_training(stage: Stage) -> dict[str, Series]:
    """Before a first step a LoRA adds nothing, so both must begin with the loss of the base model."""
    model, scale = stage.models[LARGE], stage.scale
    sequences = model.draw(scale.batch_sequences, scale.sequence_tokens + 1, seed=3)
    batch = batch_of(sequences)
    tokens = scale.steps_per_turn * scale.batch_sequences * scale.sequence_tokens
    first_losses: dict[str, float] = {}
    stage.bare.call("prepare_training", directory=model.directory, rank=RANK, learning_rate=LEARNING_RATE)
    with session(stage.server.url) as service:
        run = new_run(service, model.name)

        def ours() -> Metrics:
            started = perf_counter()
            losses = [step(run, batch) for _ in range(scale.steps_per_turn)]
            seconds = perf_counter() - started
            first_losses.setdefault(OURS, losses[0])
            return {"tokens_per_second": tokens / seconds}

        def theirs() -> Metrics:
            answer = stage.bare.call("train", sequences=sequences, steps=scale.steps_per_turn)
            first_losses.setdefault(BARE, answer["loss"])
            return {"tokens_per_second": tokens / answer["seconds"]}

        rows = stage.run_rounds({OURS: ours, BARE: theirs}, repeats=scale.training_rounds)
    if len(first_losses) == 2 and abs(first_losses[OURS] / first_losses[BARE] - 1) > LOSS_TOLERANCE:
        rows[OURS].failure = f"not the same work: first losses {first_losses}"
    return rows
