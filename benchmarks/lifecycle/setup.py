"""Set-up: models, and one live server for all measures of this benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.context import Context
from benchmarks.lifecycle.scale import FULL, LORA, QUICK, WHOLE, Scale
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer

_SMALLEST_PARAMETERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Setup:
    scale: Scale
    models: Mapping[str, Model]
    server: LiveServer


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    scale = QUICK if context.quick else FULL
    context.say("making models")
    if "saving" in context.chosen:
        sizes = {LORA: scale.lora_parameters, WHOLE: scale.whole_parameters}
    else:
        sizes = {LORA: _SMALLEST_PARAMETERS}  # no other measure trains it
    models = {
        name: new_model(name, context.directory / "models", parameters=parameters) for name, parameters in sizes.items()
    }
    context.say("starting the server")
    with LiveServer(models.values(), context.directory / "server", threads=context.threads) as server:
        yield Setup(scale, models, server)
