"""Figures: what is promised about programs that must not stop, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.checkpoints.rounds import Series
from benchmarks.server.figures import Figure
from benchmarks.server.results import Results

from . import generating, overlapping, savers, stalling
from .scale import F, L

SHARE = 0.95
P99_SECONDS, MAX_SECONDS = 0.010, 0.050


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results, measure)]


def _tokens(results: Results, measure: str) -> list[Figure]:
    """Too noisy in the short windows of a quick run; and on a busy machine, which the second figure finds out."""
    counted = not results.quick
    share, alike = (results.median(measure, row, "share") for row in (savers.OURS, generating.NOTHING))
    noise = None if alike is None else abs(1 - alike)
    return [
        Figure(measure, "tokens/s during saves, of those without", "at least", SHARE, "%", share, counted=counted),
        Figure(measure, "two windows without a save differ by", "at most", 1 - SHARE, "%", noise, counted=counted),
    ]


def _timeline(results: Results, measure: str) -> list[Figure]:
    drawn = None if measure in results.failures else float(len(results.measured[measure]))
    return [Figure(measure, "timelines, of two states saved four ways", "at least", 8, "count", drawn, counted=True)]


def _stalls(results: Results, measure: str, *, whose: str) -> list[Figure]:
    """The median round's p99, and the one latest beat of all rounds; and what the machine did to somebody else."""
    found: list[Figure] = []
    elsewhere: list[float] = []
    for state in (L, F):
        for action in (stalling.SAVE, stalling.EXPORT, stalling.LOAD):
            row = stalling.row_of(state, action)
            series = results.measured.get(measure, {}).get(row)
            p99, latest = results.median(measure, row, "p99"), _worst(series, "max")
            bystander = _worst(series, "elsewhere")
            elsewhere += [] if bystander is None else [bystander]
            counted = not results.quick
            title = f"{whose} loop, {row}"
            found += [
                Figure(measure, f"{title}: p99 of lateness", "at most", P99_SECONDS, "ms", p99, counted=counted),
                Figure(measure, f"{title}: latest beat", "at most", MAX_SECONDS, "ms", latest, counted=counted),
            ]
    title = "a bystander that only sleeps: latest time it woke"
    late = max(elsewhere, default=None)
    return [*found, Figure(measure, title, "at most", MAX_SECONDS, "ms", late, counted=False)]


def _worst(series: Series | None, metric: str) -> float | None:
    spread = None if series is None else series.spread(metric)
    return None if spread is None else spread[1]


def _overlap(results: Results, measure: str) -> list[Figure]:
    """Shown, and only shown: what there is to gain depends on the task. Not measured is missed all the same."""
    synchronous, one_step_off = overlapping.STALENESS
    return [
        Figure(
            measure,
            f"one step off against synchronous, {kind}: wall clock",
            "at most",
            1.0,
            "×",
            results.ratio(
                measure, "seconds", overlapping.row_of(kind, one_step_off), overlapping.row_of(kind, synchronous)
            ),
            counted=False,
        )
        for kind in (overlapping.FAST, overlapping.SLOW)
    ]


_OF_MEASURE: dict[str, Callable[[Results, str], list[Figure]]] = {
    "tokens-L": _tokens,
    "tokens-F": _tokens,
    "timeline": _timeline,
    "trainer-loop": partial(_stalls, whose="trainer's"),
    "server-loop": partial(_stalls, whose="server's"),
    "one-step-off": _overlap,
}
