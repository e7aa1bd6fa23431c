"""Programme: which measures run, in which order, on which models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.recovery.journalling import measure_journalling, measure_large_journalling
from benchmarks.recovery.parking import measure_parking
from benchmarks.recovery.recovering import measure_recovery
from benchmarks.recovery.scale import FULL, QUICK, RANK, REPLAYED_STEPS, Scale
from benchmarks.recovery.stage import Stage
from benchmarks.server.models import LARGE, SMALL, Model
from benchmarks.server.results import Results
from chockstone.cli.models.making import make_model

_MEASURES: dict[str, tuple[str, Callable[[Stage], dict[str, Series]]]] = {
    "journal": (SMALL, measure_journalling),
    "journal-large": (LARGE, measure_large_journalling),
    "recovery": (LARGE, measure_recovery),
    "parked": (SMALL, measure_parking),
}
MEASURES = tuple(_MEASURES)
_NOT_QUICK = "journal-large"  # says nothing on a small model


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    scale = QUICK if results.quick else FULL
    wanted = [name for name in MEASURES if name in programme.wanted and not (results.quick and name == _NOT_QUICK)]
    programme.say("making models")
    sizes = {_MEASURES[name][0] for name in wanted}
    models = {size: _make(size, scale, programme.directory / "models") for size in sorted(sizes)}
    results.titles = _titles(scale, models)
    for name in wanted:
        stage = Stage(
            quick=results.quick,
            scale=scale,
            threads=results.threads,
            directory=programme.directory / name,
            models=models,
            say=programme.say_of(name),
        )
        programme.perform(name, partial(_MEASURES[name][1], stage), results)


def _make(size: str, scale: Scale, directory: Path) -> Model:
    parameters = {SMALL: scale.small.parameters, LARGE: scale.large.parameters}[size]
    made = make_model(directory / size, architecture="qwen3", parameters=parameters)
    return Model(size, made.directory, made.shape)


def _titles(scale: Scale, models: dict[str, Model]) -> dict[str, str]:
    small, large = (models[size].title if size in models else "" for size in (SMALL, LARGE))
    return {
        "journal": f"{small} model, rank {RANK}, {scale.small.batch} a step",
        "journal-large": f"{large} model, rank {RANK}, {scale.large.batch} a step",
        "recovery": f"{large} model, rank {RANK}, {REPLAYED_STEPS} steps of {scale.large.batch} to replay",
        "parked": f"{scale.parked:,} runs on a {small} model",
    }
