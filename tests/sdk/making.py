"""Datums and runs, as tests of the SDK make them."""

from __future__ import annotations

import random
from typing import Any

import tinker
from tinker import types

from support.live import LiveServer

VOCABULARY = 512
MODEL = "tiny-qwen3"
ADAM = types.AdamParams(learning_rate=1e-2)


def tokens(seed: int, length: int = 16) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def datum(seed: int, length: int = 16, **inputs: Any) -> types.Datum:
    """A text and the token that follows each of its positions; ``inputs`` are added, or replace what is there."""
    text = tokens(seed, length + 1)
    given = {"target_tokens": text[1:], "weights": [1.0] * length, **inputs}
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1]), loss_fn_inputs=given)


def batch(seed: int, size: int = 3) -> list[types.Datum]:
    """Of several lengths."""
    return [datum(100 * seed + index, length=12 + 5 * index) for index in range(size)]


def create(service: tinker.ServiceClient, *, rank: int = 4, seed: int | None = 1, **options: Any) -> Any:
    return service.create_lora_training_client(base_model=MODEL, rank=rank, seed=seed, **options)


def step(run: tinker.TrainingClient, data: list[types.Datum]) -> Any:
    """A pass and an optimizer step, queued together; the result of the pass."""
    passed = run.forward_backward(data, "cross_entropy")
    stepped = run.optim_step(ADAM)
    stepped.result()
    return passed.result()


def numbers(output: Any) -> list[list[float]]:
    """The log-probabilities of each datum, exactly as they came."""
    return [out["logprobs"].data for out in output.loss_fn_outputs]


def train(run: tinker.TrainingClient, steps: int, *, start: int = 0) -> list[Any]:
    """What the passes gave: to compare with ``==`` with another run's."""
    outputs = [step(run, batch(number)) for number in range(start, start + steps)]
    return [(output.metrics["loss:sum"], numbers(output)) for output in outputs]


def rest_client(server: LiveServer, key: str | None = None) -> Any:
    where = {"base_url": server.url, "api_key": key or server.key}
    if hasattr(tinker, "RestClient"):
        return tinker.RestClient(**where)
    return tinker.ServiceClient(**where).create_rest_client()  # TODO: drop once SDKs older than 0.36 are gone
