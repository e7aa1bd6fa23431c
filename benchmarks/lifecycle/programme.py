"""Programme: which measures run, in which order, on one server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.lifecycle.deleting import measure_deleting
from benchmarks.lifecycle.download import measure_download
from benchmarks.lifecycle.listing import measure_listing
from benchmarks.lifecycle.saving import LORA, WHOLE, measure_saving, rank_for
from benchmarks.lifecycle.scale import FULL, MEGABYTE, QUICK, Scale
from benchmarks.lifecycle.stage import Stage
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model
from benchmarks.server.results import Results
from chockstone.cli.models.making import make_model

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "saving": measure_saving,
    "download": measure_download,
    "listing": measure_listing,
    "deleting": measure_deleting,  # from among all those that were listed
}
MEASURES = tuple(_MEASURES)
_SMALLEST = 1_000_000


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    scale = QUICK if results.quick else FULL
    programme.say("making models")
    models = _make_models(scale, programme.directory / "models", saving="saving" in programme.wanted)
    results.titles = _titles(scale, models)
    programme.say("starting the server")
    with LiveServer(models.values(), programme.directory / "server", threads=results.threads) as server:
        for name in (name for name in MEASURES if name in programme.wanted):
            stage = Stage(
                scale=scale,
                directory=programme.directory,
                models=models,
                server=server,
                say=programme.say_of(name),
            )
            programme.perform(name, partial(_MEASURES[name], stage), results)


def _make_models(scale: Scale, directory: Path, *, saving: bool) -> dict[str, Model]:
    """Without a measure that trains, the smallest will do."""
    sizes = {LORA: scale.lora_parameters if saving else _SMALLEST} | ({WHOLE: scale.whole_parameters} if saving else {})
    models: dict[str, Model] = {}
    for name, parameters in sizes.items():
        made = make_model(directory / name, architecture="qwen3", parameters=parameters)
        models[name] = Model(name, made.directory, made.shape)
    return models


def _titles(scale: Scale, models: dict[str, Model]) -> dict[str, str]:
    titles = {
        "listing": f"{scale.listed:,} checkpoints",
        "deleting": f"{scale.deleted:,} checkpoints",
        "download": f"one archive of {scale.archive_bytes / MEGABYTE:,.0f} MB, in the page cache",
        "saving": "",
    }
    if WHOLE in models:
        rank = rank_for(models[LORA], scale.lora_bytes)
        titles["saving"] = (
            f"L-like: LoRA of rank {rank} on {models[LORA].title}; F-like: {models[WHOLE].title} trained whole"
        )
    return titles
