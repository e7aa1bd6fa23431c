"""Set-up: models, a live server and the baselines, for all measures of this benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer
from benchmarks.server.scale import FULL, LARGE, MEDIUM, QUICK, SMALL, WHOLE, Scale

MODELS_OF = {
    "start": (SMALL,),
    "memory": (LARGE,),
    "overhead": (SMALL,),
    "training": (LARGE,),
    "sharing": (LARGE,),
    "sampling": (LARGE,),
    "small-sampling": (SMALL,),
    "prefixes": (LARGE,),
    "answering": (WHOLE,),
    "neighbour": (SMALL,),
    "threads": (SMALL, MEDIUM),
    "decoding": (SMALL, LARGE),
    "replicas": (LARGE,),
    "replica-move": (LARGE,),
    "replica-loss": (MEDIUM,),
}


class Setup:
    """Server and baselines start when a measure first asks for them."""

    def __init__(
        self, scale: Scale, models: Mapping[str, Model], directory: Path, threads: int, stack: ExitStack
    ) -> None:
        self.scale = scale
        self.models = models
        self._directory = directory
        self._threads = threads
        self._stack = stack

    @cached_property
    def server(self) -> LiveServer:
        """It serves the models of all measures that were chosen."""
        server = LiveServer(self.models.values(), self._directory / "server", threads=self._threads)
        return self._stack.enter_context(server)

    def new_server(self, name: str, model: str, *flags: str) -> LiveServer:
        """Another server, with one model. The caller enters it."""
        return LiveServer([self.models[model]], self._directory / name, threads=self._threads, flags=flags)

    @cached_property
    def baselines(self) -> RemoteObject:
        """An object of ``baselines.Baselines``."""
        remote = RemoteObject("benchmarks.server.baselines", "Baselines", threads=self._threads)
        return self._stack.enter_context(remote)


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    scale = QUICK if context.quick else FULL
    context.say("making models")
    parameters = {
        SMALL: scale.small_parameters,
        MEDIUM: scale.medium_parameters,
        LARGE: scale.large_parameters,
        WHOLE: scale.whole_parameters,
    }
    models = {
        name: new_model(name, context.directory / "models", parameters=parameters[name])
        for name in sorted({model for measure in context.chosen for model in MODELS_OF[measure]})
    }
    with ExitStack() as stack:
        yield Setup(scale, models, directory=context.directory, threads=context.threads, stack=stack)
