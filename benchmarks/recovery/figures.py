"""Figures: what is promised about crashes, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.recovery import journalling, parking, recovering
from benchmarks.server.figures import Figure
from benchmarks.server.results import Results

NOISE = 0.05  # of a replay against the steps it repeats, measured minutes apart
UNMEASURABLE = 0.01


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results)]


def _small_figures(results: Results) -> list[Figure]:
    return [
        _share(results, "journal", "journalling, of a step of a 1M model", 0.03, journalling.ALONE),
        _share(results, "journal", "recovery archives, of a journalled step", 0.03, journalling.ARCHIVED),
    ]


def _large_figures(results: Results) -> list[Figure]:
    """Unmeasurable: less than what two servers that do the same differ by, or than one part in a hundred."""
    noise = results.median("journal-large", journalling.AGAIN, "share") or 0.0
    bound = max(UNMEASURABLE, abs(noise))
    return [
        _share(results, "journal-large", "journalling, of a step of a 100M model", bound, journalling.ALONE),
        _share(results, "journal-large", "recovery archives, of a journalled step", 0.03, journalling.ARCHIVED),
    ]


def _recovery_figures(results: Results) -> list[Figure]:
    counted = not results.quick
    answers = results.median("recovery", recovering.OURS, "answers")
    besides = results.median("recovery", recovering.OURS, "besides")
    ratio = results.median("recovery", recovering.OURS, "against_original")
    return [
        Figure("recovery", "from start until the API answers", "at most", 5.0, "s", answers, counted=True),
        Figure("recovery", "until the run answers, besides its replay", "at most", 5.0, "s", besides, counted=counted),
        Figure("recovery", "replay against the original steps", "at most", 1 + NOISE, "×", ratio, counted=counted),
    ]


def _parking_figures(results: Results) -> list[Figure]:
    counted = not results.quick
    answers = results.median("parked", parking.FULL, "answers")
    full, empty = (results.median("parked", row, "memory") for row in (parking.FULL, parking.EMPTY))
    more = None if full is None or empty is None else full - empty
    return [
        Figure("parked", "from start until the API answers", "at most", 5.0, "s", answers, counted=counted),
        Figure("parked", "resident memory more than with none", "at most", 200e6, "MB", more, counted=counted),
    ]


def _share(results: Results, measure: str, title: str, bound: float, row: str) -> Figure:
    """Too noisy in the short turns of a quick run to decide anything."""
    value = results.median(measure, row, "share")
    return Figure(measure, title, "at most", bound, "%", value, counted=not results.quick)


_OF_MEASURE: dict[str, Callable[[Results], list[Figure]]] = {
    "journal": _small_figures,
    "journal-large": _large_figures,
    "recovery": _recovery_figures,
    "parked": _parking_figures,
}
