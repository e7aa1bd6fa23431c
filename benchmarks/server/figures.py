"""Figures: the numbers the server promises, each with its bound, and whether this run reached it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.server import answering, memory, neighbour, sampling, sharing, starting, stepping, training
from benchmarks.server.results import Results

Kind = Literal["at most", "at least"]
Unit = Literal["×", "%", "s", "ms", "MB", "count"]

MEMORY_TOLERANCE = 0.10  # of what a run is due: the allocator rounds, and the run's Python objects are small but there

LEFT_BESIDE_A_NEIGHBOUR = 0.40  # of the speed alone: four fifths of the fair share, which is a half
LEFT_ALONE = 0.98


@dataclass(frozen=True, slots=True)
class Figure:
    measure: str
    title: str
    kind: Kind
    bound: float
    unit: Unit
    value: float | None  # None: something it needs did not run
    counted: bool  # False: shown, but not meaningful at the size of this run

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bound if self.kind == "at most" else self.value >= self.bound

    @property
    def missed(self) -> bool:
        """A figure that could not be measured is missed at any size."""
        return self.value is None or (self.counted and not self.reached)

    @property
    def sentence(self) -> str:
        measured = "not measured" if self.value is None else show(self.value, self.unit)
        return f"{self.title} [{self.measure}]: {measured}, wanted {self.kind} {show(self.bound, self.unit)}"

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "measure": self.measure,
            "title": self.title,
            "wanted": f"{self.kind} {show(self.bound, self.unit)}",
            "bound": self.bound,
            "value": self.value,
            "reached": self.reached,
            "counted": self.counted,
        }


def show(value: float, unit: Unit) -> str:
    return {
        "×": f"{value:.2f}×",
        "%": f"{value * 1e2:.1f} %",
        "s": f"{value:.1f} s",
        "ms": f"{value * 1e3:.1f} ms",
        "MB": f"{value / 1e6:.0f} MB",
        "count": f"{value:.0f}",
    }[unit]


def figures(results: Results) -> list[Figure]:
    """Only figures of measures that were asked for in this run, whether or not they could be made."""
    asked = [*results.measured, *results.failures]
    return [figure for measure in asked for figure in _OF_MEASURE[measure](results)]


def _start_figures(results: Results) -> list[Figure]:
    answers = results.median("start", starting.SERVER, "answers")
    stepped = results.median("start", starting.SERVER, "stepped")
    return [
        Figure("start", "from start until the API answers", "at most", 2.0, "s", answers, counted=True),
        Figure("start", "from start to the first trained step", "at most", 15.0, "s", stepped, counted=True),
    ]


def _overhead_figures(results: Results) -> list[Figure]:
    seconds = results.median("overhead", stepping.STEP, "seconds")
    lost = results.median("overhead", stepping.PIPELINED, "lost")
    differing = results.median("overhead", stepping.PIPELINED, "differing")
    disorder = None if lost is None or differing is None else lost + differing
    return [
        Figure("overhead", "optim_step through the SDK", "at most", 0.015, "ms", seconds, counted=True),
        Figure("overhead", "pipelined operations lost or out of order", "at most", 0, "count", disorder, counted=True),
    ]


def _training_figures(results: Results) -> list[Figure]:
    value = results.ratio("training", "tokens_per_second", training.OURS, training.BARE)
    return [_ratio_figure(results, "training", "tokens/s against a bare PyTorch + PEFT loop", "at least", 0.85, value)]


def _sampling_figures(results: Results) -> list[Figure]:
    def against(row: str) -> float | None:
        return results.ratio("sampling", "tokens_per_second", sampling.OURS, row)

    title = "tokens/s against generate"
    return [
        _ratio_figure(results, "sampling", f"{title}, prompt by prompt", "at least", 5.0, against(sampling.SINGLY)),
        _ratio_figure(results, "sampling", f"{title}, one batch", "at least", 1.0, against(sampling.BATCHED)),
    ]


def _small_sampling_figures(results: Results) -> list[Figure]:
    value = results.ratio("small-sampling", "tokens_per_second", sampling.OURS, sampling.BATCHED)
    title = "tokens/s against batched generate, small model"
    return [Figure("small-sampling", title, "at least", 5.0, "×", value, counted=True)]


def _sharing_figures(results: Results) -> list[Figure]:
    value = results.ratio("sharing", "tokens_per_second", sharing.MANY, sharing.ONE)
    return [_ratio_figure(results, "sharing", "tokens/s of four runs in sum against one", "at least", 0.95, value)]


def _answering_figures(results: Results) -> list[Figure]:
    value = results.ratio("answering", "p99_all", answering.SAVING, answering.IDLE)
    return [_ratio_figure(results, "answering", "API p99 during a save against idle", "at most", 2.0, value)]


def _neighbour_figures(results: Results) -> list[Figure]:
    """The small model keeps its size in a quick run, so what is left beside a neighbour counts there, too."""

    def against(workload: str, company: str, other: str) -> float | None:
        rows = neighbour.row(workload, company), neighbour.row(workload, other)
        return results.ratio("neighbour", "tokens_per_second", *rows)

    left = [
        Figure(
            "neighbour",
            f"{workload}, tokens/s {company} against alone",
            "at least",
            LEFT_BESIDE_A_NEIGHBOUR,
            "×",
            against(workload, company, neighbour.ALONE),
            counted=True,
        )
        for workload in neighbour.WORKLOADS
        for company in (neighbour.BESIDE, neighbour.PINNED)
    ]
    if results.quick:
        return left
    title = "tokens/s alone against threads that always spin"
    return left + [
        Figure(
            "neighbour",
            f"{workload}, {title}",
            "at least",
            LEFT_ALONE,
            "×",
            results.paired_ratio(
                "neighbour",
                "tokens_per_second",
                neighbour.row(workload, neighbour.ALONE),
                neighbour.row(workload, neighbour.SPINNING),
            ),
            counted=True,
        )
        for workload in neighbour.WORKLOADS
    ]


def _memory_figures(results: Results) -> list[Figure]:
    value = results.ratio("memory", "bytes", memory.FURTHER, memory.DUE)
    title = "memory of a further run against its adapter, gradient and moments"
    return [_ratio_figure(results, "memory", title, "at most", 1.0 + MEMORY_TOLERANCE, value)]


def _ratio_figure(results: Results, measure: str, title: str, kind: Kind, bound: float, value: float | None) -> Figure:
    """These need the large models, so a quick run, which has smaller ones, cannot decide them."""
    return Figure(measure, title, kind, bound, "×", value, counted=not results.quick)


_OF_MEASURE: dict[str, Callable[[Results], list[Figure]]] = {
    "start": _start_figures,
    "memory": _memory_figures,
    "overhead": _overhead_figures,
    "training": _training_figures,
    "sharing": _sharing_figures,
    "sampling": _sampling_figures,
    "small-sampling": _small_sampling_figures,
    "answering": _answering_figures,
    "neighbour": _neighbour_figures,
}
