"""Figures: what is promised about resuming, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.resume import attempts, forwarding, saving, walking
from benchmarks.server.figures import Figure
from benchmarks.server.results import Results


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results)]


def _walking_figures(results: Results) -> list[Figure]:
    found: list[Figure] = []
    for row in walking.OURS:
        requests = results.median("walk", row, "requests")
        seconds = results.median("walk", row, "seconds")
        found += [
            Figure("walk", f"requests besides the winner's, {row}", "at most", 200, "count", requests, counted=True),
            Figure("walk", f"until restored, {row}", "at most", 2.0, "s", seconds, counted=True),
        ]
    return found


def _saving_figures(results: Results) -> list[Figure]:
    """Too noisy in the few rounds of a quick run to decide anything."""
    shares = {store: results.median("saving", saving.CHAINED[store], "share") for store in saving.STORES}
    return [
        Figure("saving", f"claims and fences, of a 60 MB save, {store}", "at most", 0.10, "%", share, not results.quick)
        for store, share in shares.items()
    ]


def _forwarding_figures(results: Results) -> list[Figure]:
    """Ratios without a bound: they must only have been measured."""
    ratios = {store: results.median("forward", forwarding.REFERRED[store], "against") for store in forwarding.STORES}
    return [
        Figure("forward", f"through a reference against directly, {store}", "at least", 0, "×", ratio, counted=True)
        for store, ratio in ratios.items()
    ]


def _attempts_figures(results: Results) -> list[Figure]:
    found: list[Figure] = []
    for row in attempts.OURS:
        most = results.median("attempts", row, "most")
        states = results.median("attempts", row, "states")
        wanted = attempts.KEPT + 2
        found += [
            Figure(
                "attempts", f"requests of an attempt besides files, {row}", "at most", 40, "count", most, counted=True
            ),
            Figure("attempts", f"states on the store, {row}", "at most", wanted, "count", states, counted=True),
        ]
    return found


_OF_MEASURE: dict[str, Callable[[Results], list[Figure]]] = {
    "walk": _walking_figures,
    "saving": _saving_figures,
    "forward": _forwarding_figures,
    "attempts": _attempts_figures,
}
