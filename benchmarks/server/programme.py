"""Programme: which measures run, in which order, on which models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.server import models
from benchmarks.server.answering import measure_answering
from benchmarks.server.apart import Apart
from benchmarks.server.live import LiveServer
from benchmarks.server.memory import measure_memory
from benchmarks.server.neighbour import measure_neighbour
from benchmarks.server.results import Results
from benchmarks.server.sampling import measure_sampling, measure_small_sampling
from benchmarks.server.scale import CONCURRENT_RUNS, FULL, PROMPT_TOKENS, QUICK, RANK, SMALL_SEQUENCES
from benchmarks.server.sharing import measure_sharing
from benchmarks.server.stage import Stage
from benchmarks.server.starting import measure_starting
from benchmarks.server.stepping import measure_stepping
from benchmarks.server.training import measure_training

_ON_A_SERVER: dict[str, tuple[str, Callable[[Stage], dict[str, Series]]]] = {
    "memory": (models.LARGE, measure_memory),  # first, while nothing else has grown the worker
    "overhead": (models.SMALL, measure_stepping),
    "training": (models.LARGE, measure_training),
    "sharing": (models.LARGE, measure_sharing),
    "sampling": (models.LARGE, measure_sampling),
    "small-sampling": (models.SMALL, measure_small_sampling),
    "answering": (models.WHOLE, measure_answering),
    "neighbour": (models.SMALL, measure_neighbour),
}
MEASURES = ("start", *_ON_A_SERVER)


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    scale = QUICK if results.quick else FULL
    programme.say("making models")
    needed = {_ON_A_SERVER[name][0] for name in programme.wanted - {"start"}}
    needed |= {models.SMALL} if "start" in programme.wanted else set()
    made = {name: models.make(name, programme.directory / "models", scale) for name in sorted(needed)}
    results.titles = _titles(results, made)
    if "start" in programme.wanted:
        programme.perform(
            "start",
            lambda: measure_starting(
                made[models.SMALL], scale, threads=results.threads, directory=programme.directory, say=programme.say
            ),
            results,
        )
    wanted = [name for name in _ON_A_SERVER if name in programme.wanted]
    if not wanted:
        return
    programme.say("starting the baselines and the server")
    with (
        Apart("benchmarks.server.baselines", "Baselines", threads=results.threads) as bare,
        LiveServer(made.values(), programme.directory / "server", threads=results.threads) as server,
    ):
        for name in wanted:
            stage = Stage(
                scale=scale,
                threads=results.threads,
                directory=programme.directory,
                models=made,
                server=server,
                bare=bare,
                say=programme.say_of(name),
            )
            programme.perform(name, partial(_ON_A_SERVER[name][1], stage), results)


def _titles(results: Results, made: dict[str, models.Model]) -> dict[str, str]:
    scale = QUICK if results.quick else FULL
    together = f"{CONCURRENT_RUNS} runs of {max(1, scale.batch_sequences // 2)} × {scale.sequence_tokens} tokens a step"
    large = made[models.LARGE].title if models.LARGE in made else ""
    small = made[models.SMALL].title if models.SMALL in made else ""
    whole = made[models.WHOLE].title if models.WHOLE in made else ""
    length, batch = scale.sequence_tokens, scale.batch_sequences
    return {
        "start": f"{small} model",
        "memory": f"{large} model, rank {RANK}",
        "overhead": f"{small} model, rank {RANK}",
        "training": f"{large} model, rank {RANK}, {batch} × {length} tokens a step",
        "sharing": f"{large} model, rank {RANK}, {together}",
        "sampling": f"{large} model, {scale.prompts} prompts of {PROMPT_TOKENS} tokens × {scale.samples} samples "
        f"× {scale.sampled_tokens} tokens",
        "small-sampling": f"{small} model, {SMALL_SEQUENCES} prompts of {PROMPT_TOKENS} tokens × 64 tokens",
        "answering": f"{whole} model trained whole, saved with its moments",
        "neighbour": f"{small} model",
    }
