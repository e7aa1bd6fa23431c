"""The client: what a training script does with the SDK, in the few shapes that are measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tinker
from tinker import types

from benchmarks.live.models import Tokens
from benchmarks.live.server import KEY

LEARNING_RATE = 1e-4
RANK = 32  # of a LoRA, unless a measure says otherwise
ADAM = types.AdamParams(learning_rate=LEARNING_RATE)


@contextmanager
def session(url: str) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=url, api_key=KEY) as service:
        yield service


def new_run(
    service: tinker.ServiceClient, model_name: str, *, rank: int = RANK, seed: int = 0
) -> tinker.TrainingClient:
    """A LoRA on every linear layer inside the blocks, which is PEFT's ``all-linear``; rank 0 trains everything."""
    return service.create_lora_training_client(base_model=model_name, rank=rank, seed=seed, train_unembed=False)


def batch_of(sequences: Sequence[Tokens]) -> list[types.Datum]:
    """Each sequence predicts its own next tokens, so one of N + 1 tokens trains N."""
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
                "weights": types.TensorData(data=[1.0] * (len(tokens) - 1), dtype="float32", shape=[len(tokens) - 1]),
            },
        )
        for tokens in sequences
    ]


def step(run: tinker.TrainingClient, batch: list[types.Datum]) -> float:
    """One pass and one optimizer step, sent together as the SDK recommends. Returns the summed loss."""
    passing = run.forward_backward(batch, "cross_entropy")
    stepping = run.optim_step(ADAM)
    loss = passing.result().metrics["loss:sum"]
    stepping.result()
    return float(loss)


def sample_all(sampler: tinker.SamplingClient, prompts: Sequence[Tokens], *, samples: int, max_tokens: int) -> int:
    """All prompts at once; returns how many tokens came back."""
    params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0, stop=[])
    futures = [
        sampler.sample(types.ModelInput.from_ints(prompt), num_samples=samples, sampling_params=params)
        for prompt in prompts
    ]
    return sum(len(sequence.tokens) for future in futures for sequence in future.result().sequences)
