"""Set-up: the models of this benchmark. Each measure starts servers of its own, because their settings are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness.context import Context
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer
from benchmarks.recovery.scale import FULL, LARGE, QUICK, SMALL, Scale

MODEL_OF = {"journal": SMALL, "journal-large": LARGE, "recovery": LARGE, "parked": SMALL}


@dataclass(frozen=True, slots=True)
class Setup:
    scale: Scale
    models: Mapping[str, Model]


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    scale = QUICK if context.quick else FULL
    context.say("making models")
    parameters = {SMALL: scale.small.parameters, LARGE: scale.large.parameters}
    models = {
        name: new_model(name, context.directory / "models", parameters=parameters[name])
        for name in sorted({MODEL_OF[measure] for measure in context.chosen})
    }
    yield Setup(scale, models)


def new_server(context: Context, model: Model, home: str, *flags: str) -> LiveServer:
    """``home``: a directory of the measure. A server that has the same one finds the same data."""
    return LiveServer([model], context.directory / home, threads=context.threads, flags=flags)
