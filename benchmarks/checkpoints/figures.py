"""Figures: the numbers the library promises, each with its bound, and whether this run reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.checkpoints import ours, restoring, saving, stalling
from benchmarks.checkpoints.results import Measure, Results
from benchmarks.checkpoints.scaling import Axis, growth_exponent

Kind = Literal["at most", "at least"]
Unit = Literal["×", "%", "exponent"]

MEMORY_SLACK = 0.05
LINEAR_EXPONENT = 1.15  # thirteen times the bytes may take at most half as long again per byte


@dataclass(frozen=True, slots=True)
class Figure:
    measure: str
    state: str
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
        return self.counted and not self.reached

    @property
    def sentence(self) -> str:
        measured = "not measured" if self.value is None else f"{show(self.value, self.unit)}"
        return f"{self.title} [{self.state}]: {measured}, wanted {self.kind} {show(self.bound, self.unit)}"

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "measure": self.measure,
            "state": self.state,
            "title": self.title,
            "wanted": f"{self.kind} {show(self.bound, self.unit)}",
            "bound": self.bound,
            "value": self.value,
            "reached": self.reached,
            "counted": self.counted,
        }


def show(value: float, unit: Unit) -> str:
    return {"×": f"{value:.2f}×", "%": f"{value:.2f} %", "exponent": f"n^{value:.2f}"}[unit]


def figures(results: Results) -> list[Figure]:
    """Only figures of what was measured in this run."""
    found: list[Figure] = []
    for state in results.states:
        if ("save", state) in results.measured:
            found += _save_figures(results, state)
        if ("stall", state) in results.measured:
            found += _stall_figures(results, state)
        if ("memory", state) in results.measured:
            found.append(_memory_figure(results, state))
        if ("restore", state) in results.measured:
            found += _restore_figures(results, state)
        if ("bytes", state) in results.measured:
            found.append(_bytes_figure(results, state))
    return found + (_scaling_figures(results) if results.scaling else [])


def _save_figures(results: Results, state: str) -> list[Figure]:
    bounds = {
        "F": {"safetensors": 3.0, "DCP": 3.5, "directory, then tar": 5.0, "orbax": 7.0},
        "L": {"safetensors": 1.5, "DCP": 7.0, "directory, then tar": 5.0, "orbax": 7.0},
    }[state]
    limit_bound = {"F": 1.6, "L": 2.0}[state]
    return [
        _times_limit(results, "save", state, "durable save against O_DIRECT write", saving.LIMIT, limit_bound),
        *(
            _times_faster(results, "save", state, f"durable save faster than {peer}", peer, bound)
            for peer, bound in bounds.items()
        ),
    ]


def _stall_figures(results: Results, state: str) -> list[Figure]:
    limit_bound = {"F": 1.2, "L": 2.5}[state]
    mine = results.median("stall", state, ours.NAME)
    theirs = results.medians("stall", state, without=(ours.NAME, stalling.LIMIT))
    found = [
        _times_limit(results, "stall", state, "save() blocks against memcpy", stalling.LIMIT, limit_bound),
        _figure(
            results, "stall", state, "save() blocks against the shortest async peer", "at most", 1.0,
            _ratio(mine, min(theirs.values(), default=None)),
        ),
    ]  # fmt: skip
    if state == "F":
        durable = results.median("stall", state, ours.NAME, "durable")
        others = results.medians("stall", state, "durable", without=(ours.NAME,))
        soonest = min(others.values(), default=None)
        title = "durable sooner than the fastest async peer"
        found.append(_figure(results, "stall", state, title, "at least", 3.0, _ratio(soonest, durable)))
    return found


def _memory_figure(results: Results, state: str) -> Figure:
    extra = results.median("memory", state, ours.NAME, "extra_bytes")
    value = _ratio(extra, float(results.states[state].size_bytes))
    return _figure(results, "memory", state, "extra host memory in snapshots", "at most", 1.0 + MEMORY_SLACK, value)


def _restore_figures(results: Results, state: str) -> list[Figure]:
    title = "verified restore against O_DIRECT read"
    limit_bound = {"F": 1.3, "L": 2.0}[state]
    found = [_times_limit(results, "restore", state, title, restoring.LIMIT, limit_bound)]
    if state == "F":
        for peer, bound in {"safetensors": 1.7, "DCP": 3.0}.items():
            title = f"verified restore faster than unverified {peer}"
            found.append(_times_faster(results, "restore", state, title, peer, bound))
    return found


def _bytes_figure(results: Results, state: str) -> Figure:
    size_bytes = results.states[state].size_bytes
    written = results.median("bytes", state, ours.NAME, "written_bytes")
    value = None if written is None else 100.0 * (written / size_bytes - 1.0)
    return Figure("bytes", state, "bytes written beyond the state", "at most", 1.0, "%", value, counted=True)


def _scaling_figures(results: Results) -> list[Figure]:
    axes: dict[Axis, str] = {"size": "size", "count": "number of tensors"}
    return [
        Figure(
            "scaling", "—", f"growth of {metric} with the {title}", "at most", LINEAR_EXPONENT, "exponent",
            growth_exponent(results.scaling, axis, metric), counted=not results.quick,
        )
        for axis, title in axes.items()
        for metric in ("save", "restore")
    ]  # fmt: skip


def _times_limit(results: Results, measure: Measure, state: str, title: str, limit: str, bound: float) -> Figure:
    value = _ratio(results.median(measure, state, ours.NAME), results.median(measure, state, limit))
    return _figure(results, measure, state, title, "at most", bound, value)


def _times_faster(results: Results, measure: Measure, state: str, title: str, peer: str, bound: float) -> Figure:
    value = _ratio(results.median(measure, state, peer), results.median(measure, state, ours.NAME))
    return _figure(results, measure, state, title, "at least", bound, value)


def _figure(
    results: Results, measure: Measure, state: str, title: str, kind: Kind, bound: float, value: float | None
) -> Figure:
    """In a quick run L has its full size and all repeats, so its figures count; F is a stand-in."""
    counted = state == "L" or not results.quick
    return Figure(measure, state, title, kind, bound, "×", value, counted)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below
