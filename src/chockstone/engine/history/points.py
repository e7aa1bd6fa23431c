"""Points: the numbers of an operation, or numbers that a client reported, at one place in the history of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeGuard

Source = Literal["server", "client"]
MAX_NAME: Final = 64  # characters of a series name
MAX_STEP: Final = 2**53 - 1
MAX_TIME: Final = 253_402_300_799.0  # seconds since 1970: the end of the year 9999
LOSS: Final = "loss"
LOSS_MIN: Final = "loss:min"
LOSS_MAX: Final = "loss:max"
EXTREMES: Final = (LOSS_MIN, LOSS_MAX)  # of the points that a merged point stands for
_SOURCES: Final = ("server", "client")
_NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_./:-]{{0,{MAX_NAME - 1}}}")


@lru_cache(maxsize=4096)
def is_name(name: str) -> bool:
    """Whether a series may be called so."""
    return _NAME.fullmatch(name) is not None


def plain_values(values: Mapping[str, float]) -> dict[str, float]:
    """The values that a point can hold: finite ones with the name of a series."""
    return {name: float(value) for name, value in values.items() if is_name(name) and math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Numbers of one moment of a run, before they have a place in its history."""

    at: float  # seconds since 1970
    step: int  # optimizer steps so far
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "step": self.step, "values": dict(self.values)}

    @classmethod
    def from_json(cls, found: Any) -> Measurement:  # Any: plain JSON, perhaps damaged
        """Raises ValueError."""
        if not isinstance(found, dict) or not isinstance(found.get("values"), dict):
            raise ValueError("it is not a measurement")
        at, step = found.get("at"), found.get("step")
        if not _is_number(at) or not 0 <= at <= MAX_TIME:
            raise ValueError("its time is not valid")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
            raise ValueError("its step is not valid")
        values = found["values"]
        if not all(is_name(name) and _is_number(value) for name, value in values.items()):
            raise ValueError("a value of it is not valid")
        return cls(float(at), step, {name: float(value) for name, value in values.items()})


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One point. After thinning it stands for several: values are means, and the rest is that of the last one."""

    position: int  # in the run's history: grows by one per point, and is never used again
    sequence: int | None  # of the operation in the run's journal; None: a client reported the point
    at: float  # seconds since 1970
    step: int  # optimizer steps so far
    source: Source
    values: Mapping[str, float]
    count: int = 1  # points that it stands for
    counts: Mapping[str, int] = field(default_factory=dict)  # of those, how many had a series, where not all had it

    def count_of(self, name: str) -> int:
        """How many of the points that it stands for had the series."""
        return self.counts.get(name, self.count)

    def to_json(self) -> dict[str, Any]:
        """As clients get it."""
        shown: dict[str, Any] = {"position": self.position, "at": self.at, "step": self.step, "source": self.source}
        if self.sequence is not None:
            shown["sequence"] = self.sequence
        if self.count > 1:
            shown["count"] = self.count
        return shown | {"values": self.values}

    def to_record(self) -> dict[str, Any]:
        """As the file has it."""
        return {**self.to_json(), "counts": self.counts} if self.counts else self.to_json()

    @classmethod
    def from_record(cls, found: Any) -> HistoryPoint:  # Any: plain JSON, perhaps damaged
        """Raises ValueError. A history has thousands of points, so the checks are few and quick."""
        try:
            position, sequence, at, step = found["position"], found.get("sequence"), found["at"], found["step"]
            source, values = found["source"], found["values"]
            count, counts = found.get("count", 1), found.get("counts", {})
            is_whole = all(map(_is_count, (position, count, step + 1, *counts.values())))
            is_plain = all(map(is_name, values)) and all(map(math.isfinite, values.values()))
            is_placed = 0 <= at <= MAX_TIME and source in _SOURCES and (sequence is None or _is_count(sequence))
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"it is not a point: {error!r}") from error
        if not (is_whole and is_plain and is_placed):
            raise ValueError("a number, a name or the source of it is not valid")
        return cls(position, sequence, at, step, source, values, count, counts)

    def only(self, names: frozenset[str]) -> HistoryPoint | None:
        """With these series alone, and the extremes of the loss if it is among them; None if it has none of them."""
        if not any(name in names for name in self.values):
            return None
        wanted = names.union(EXTREMES) if LOSS in names else names
        values = {name: value for name, value in self.values.items() if name in wanted}
        counts = {name: count for name, count in self.counts.items() if name in wanted}
        return HistoryPoint(self.position, self.sequence, self.at, self.step, self.source, values, self.count, counts)


def merge(points: Sequence[HistoryPoint]) -> HistoryPoint:
    """One point for all: each value is the mean over the points that had it. The extremes of the loss are kept.

    ``points`` are of one source, oldest first.
    """
    last, count = points[-1], sum(point.count for point in points)
    counts: dict[str, int] = {}
    for point in points:
        for name in point.values:
            counts[name] = counts.get(name, 0) + point.count_of(name)
    values = dict.fromkeys(counts, 0.0)
    for point in points:
        for name, value in point.values.items():
            values[name] += value * (point.count_of(name) / counts[name])
    for name, extreme in ((LOSS_MIN, min), (LOSS_MAX, max)):
        found = [point.values.get(name, point.values.get(LOSS)) for point in points]
        if known := [value for value in found if value is not None]:
            values[name] = extreme(known)
    fewer = {name: had for name, had in counts.items() if had != count and name not in EXTREMES}
    return HistoryPoint(last.position, last.sequence, last.at, last.step, last.source, values, count, fewer)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_STEP + 1


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
