"""Programme: which measures run, in which order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.benchmark import Programme
from benchmarks.checkpoints.rounds import Series
from benchmarks.resume.attempts import measure_attempts
from benchmarks.resume.forwarding import measure_forwarding
from benchmarks.resume.loopback import loopback
from benchmarks.resume.saving import measure_saving
from benchmarks.resume.stage import FULL, QUICK, Stage
from benchmarks.resume.walking import measure_walking
from benchmarks.server.results import Results

_MEASURES: dict[str, Callable[[Stage], dict[str, Series]]] = {
    "walk": measure_walking,
    "saving": measure_saving,
    "forward": measure_forwarding,
    "attempts": measure_attempts,
}
MEASURES = tuple(_MEASURES)


def perform(programme: Programme, results: Results) -> None:
    """Run the wanted measures and add them to ``results``; one that fails leaves its reason and lets others run."""
    scale = QUICK if results.quick else FULL
    results.titles = {
        "walk": f"attempt {scale.attempts - 1} of a chain, the first one's is the only good one, loopback S3",
        "saving": "500 tensors, 60 MB",
        "forward": "500 tensors, 60 MB",
        "attempts": f"{scale.resumed} attempts, each resumes and saves one file, loopback S3",
    }
    with loopback() as s3:
        for name in (name for name in MEASURES if name in programme.wanted):
            stage = Stage(scale=scale, directory=programme.directory, s3=s3, say=programme.say)
            programme.perform(name, partial(_MEASURES[name], stage), results)
