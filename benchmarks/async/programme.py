"""Programme: which measures run, in which order, beside which server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.server.client import sample_all, session
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model
from benchmarks.server.results import Results
from chockstone.checkpoints.runtime.threads import tune_for_latency
from chockstone.cli.models.making import make_model

from .generating import measure_generating
from .loop import Traffic
from .overlapping import measure_overlapping
from .scale import ANSWER_TOKENS, FULL, IN_FLIGHT, PROMPT_TOKENS, QUICK, TINY_PARAMETERS, F, L
from .stage import Stage
from .stalling import measure_server, measure_trainer
from .timeline import measure_timeline

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "tokens-L": partial(measure_generating, name=L),
    "tokens-F": partial(measure_generating, name=F),
    "timeline": measure_timeline,
    "trainer-loop": measure_trainer,
    "server-loop": measure_server,
    "one-step-off": measure_overlapping,
}
MEASURES = tuple(_MEASURES)


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    programme.say("starting a server")
    made = make_model(programme.directory / "tiny", architecture="qwen3", parameters=TINY_PARAMETERS)
    model = Model("tiny", made.directory, made.shape)
    with (
        LiveServer([model], programme.directory / "server", threads=results.threads) as server,
        session(server.url) as service,
    ):
        prompts = model.draw(64, PROMPT_TOKENS, seed=1)
        traffic = Traffic(service.create_sampling_client(base_model=model.name), prompts, ANSWER_TOKENS, IN_FLIGHT)
        sample_all(traffic.sampler, prompts[:1], samples=1, max_tokens=1)  # the worker has the model now
        tune_for_latency()
        for name in (name for name in MEASURES if name in programme.wanted):
            stage = Stage(
                measure=name,
                scale=QUICK if results.quick else FULL,
                threads=results.threads,
                directory=programme.directory / name,
                model=model,
                server=server,
                traffic=traffic,
                titles=results.titles,
                say=programme.say_of(name),
            )
            programme.perform(name, partial(_MEASURES[name], stage), results)
