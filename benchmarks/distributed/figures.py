"""Figures: what is promised about many ranks, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.distributed import stepping
from benchmarks.distributed.archiving import ALIKE, DCP, ONE, TWO
from benchmarks.server.figures import Figure
from benchmarks.server.results import Results


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results, measure)]


def _archiving(results: Results, measure: str) -> list[Figure]:
    counted = not results.quick
    against_one = results.ratio(measure, "seconds", TWO, ONE)
    against_dcp = results.ratio(measure, "seconds", DCP, TWO)
    return [
        Figure(measure, "two ranks against one, the same bytes", "at most", 1.1, "×", against_one, counted=counted),
        Figure(measure, "torch DCP against ours, two ranks each", "at least", 3.0, "×", against_dcp, counted=counted),
    ]


def _saving(results: Results, measure: str) -> list[Figure]:
    blocked = results.ratio(measure, "blocked", TWO, ALIKE)
    title = "blocked per rank, two ranks against one alike"
    return [
        *_archiving(results, measure),
        Figure(measure, title, "at most", 0.5, "×", blocked, counted=not results.quick),
    ]


def _stepping(results: Results, measure: str) -> list[Figure]:
    against = {
        "a step against the same arithmetic in a bare loop": stepping.OWN,
        "a step against a bare FSDP2 loop": stepping.BARE,
    }
    ratios = {title: results.ratio(measure, "seconds", stepping.OURS, row) for title, row in against.items()}
    return [
        Figure(measure, title, "at most", 1.05, "×", ratio, counted=not results.quick)
        for title, ratio in ratios.items()
    ]


_OF_MEASURE: dict[str, Callable[[Results, str], list[Figure]]] = {
    "save": _saving,
    "load": _archiving,
    "step": _stepping,
}
