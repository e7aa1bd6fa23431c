"""Programme: which measures run, in which order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.distributed.archiving import measure_loading, measure_saving
from benchmarks.distributed.stage import FULL, QUICK, Stage
from benchmarks.distributed.stepping import measure_stepping
from benchmarks.server.results import Results

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "save": measure_saving,
    "load": measure_loading,
    "step": measure_stepping,
}
MEASURES = tuple(_MEASURES)


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    for name in (name for name in MEASURES if name in programme.wanted):
        place = programme.directory / name
        place.mkdir()
        scale = QUICK if results.quick else FULL
        stage = Stage(scale, place, temperature=programme.memory, titles=results.titles, say=programme.say_of(name))
        programme.perform(name, partial(_MEASURES[name], stage), results)
