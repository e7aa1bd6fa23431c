"""Programme: which measures run, in which order."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection

from benchmarks.checkpoints.rounds import Series
from benchmarks.resume.forwarding import measure_forwarding
from benchmarks.resume.saving import measure_saving
from benchmarks.resume.stage import Stage
from benchmarks.resume.walking import measure_walking
from benchmarks.server.results import Results

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "walk": measure_walking,
    "saving": measure_saving,
    "forward": measure_forwarding,
}
MEASURES = tuple(_MEASURES)


def perform(stage: Stage, results: Results, wanted: Collection[str], finished: Callable[[str], None]) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    results.titles = {
        "walk": f"attempt {stage.scale.attempts - 1} of a chain, the first one's is the only good one, loopback S3",
        "saving": "500 tensors, 60 MB",
        "forward": "500 tensors, 60 MB",
    }
    for name in (name for name in MEASURES if name in wanted):
        try:
            results.measured[name] = _MEASURES[name](stage)
        except Exception:  # recorded: its figures are then not measured, which fails the run
            results.failures[name] = traceback.format_exc(limit=-4)
        finished(name)
