"""Set-up: a live server with a tiny model, and the traffic that keeps it busy, for all measures of this benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.context import Context
from benchmarks.live.client import sample_all, session
from benchmarks.live.models import Model, new_model
from benchmarks.live.server import LiveServer
from chockstone.checkpoints.runtime.threads import tune_for_latency

from .loop import Traffic
from .scale import ANSWER_TOKENS, FULL, IN_FLIGHT, PROMPT_TOKENS, QUICK, TINY_PARAMETERS, Scale


@dataclass(frozen=True, slots=True)
class Setup:
    scale: Scale
    model: Model  # a tiny one
    server: LiveServer  # that serves it
    traffic: Traffic  # to it


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    context.say("starting a server")
    model = new_model("tiny", context.directory, parameters=TINY_PARAMETERS)
    with (
        LiveServer([model], context.directory / "server", threads=context.threads) as server,
        session(server.url) as service,
    ):
        prompts = model.draw(64, PROMPT_TOKENS, seed=1)
        traffic = Traffic(service.create_sampling_client(base_model=model.name), prompts, ANSWER_TOKENS, IN_FLIGHT)
        sample_all(traffic.sampler, prompts[:1], samples=1, max_tokens=1)  # the worker has the model now
        tune_for_latency()
        yield Setup(QUICK if context.quick else FULL, model, server, traffic)


def watched_server(context: Context, models: Iterable[Model]) -> LiveServer:
    """Another server, whose event loop is watched more closely; see ``watched.py``."""
    program = [str(Path(__file__).with_name("watched.py"))]
    return LiveServer(models, context.directory / "server", threads=context.threads, program=program)
