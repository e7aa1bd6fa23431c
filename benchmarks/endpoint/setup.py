"""Set-up: one model and a server of it, for all measures of this benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.context import Context
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer

MODEL = "talking"
STREAMS = 64  # at once


@dataclass(frozen=True, slots=True)
class Setup:
    model: Model
    server: LiveServer
    rounds: int
    prompts: int
    sampled_tokens: int


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    context.say("making a model")
    parameters = 1_000_000 if context.quick else 125_000_000
    model = new_model(MODEL, context.directory / "models", parameters=parameters)
    with LiveServer([model], context.directory / "server", threads=context.threads) as server:
        yield Setup(
            model,
            server,
            rounds=2 if context.quick else 7,
            prompts=8 if context.quick else 16,
            sampled_tokens=32 if context.quick else 64,
        )
