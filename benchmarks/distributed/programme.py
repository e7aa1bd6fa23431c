"""Programme: which measures run, in which order."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from dataclasses import replace

from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.rounds import Series
from benchmarks.distributed.archiving import measure_loading, measure_saving
from benchmarks.distributed.stage import Stage
from benchmarks.distributed.stepping import measure_stepping
from benchmarks.server.results import Results

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "save": measure_saving,
    "load": measure_loading,
    "step": measure_stepping,
}
MEASURES = tuple(_MEASURES)


def perform(stage: Stage, results: Results, wanted: Collection[str], finished: Callable[[str], None]) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    for name in (name for name in MEASURES if name in wanted):
        place = stage.directory / name
        place.mkdir()
        try:
            results.measured[name] = _MEASURES[name](replace(stage, directory=place))
        except Exception:  # recorded: its figures are then not measured, which fails the run
            results.failures[name] = traceback.format_exc(limit=-4)
        remove(place)
        finished(name)
