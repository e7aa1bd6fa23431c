"""Points: the numbers of an operation, or numbers that a client reported, at one place in the history of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
        """Raises ValueError."""
        measured = Measurement.from_json(found)
        position, sequence, source = found.get("position"), found.get("sequence"), found.get("source")
        count, counts = found.get("count", 1), found.get("counts", {})
        if source not in ("server", "client") or not isinstance(counts, dict):
            raise ValueError("its source is not valid")
        numbers = [position, count, *counts.values(), *([] if sequence is None else [sequence])]
        if not all(isinstance(each, int) and 0 < each <= MAX_STEP for each in numbers):
            raise ValueError("a number of it is not valid")
        return cls(position, sequence, measured.at, measured.step, source, measured.values, count, counts)

    def only(self, names: frozenset[str]) -> HistoryPoint | None:
        """With these series alone, and the extremes of the loss if it is among them; None if it has none of them."""
        if not any(name in names for name in self.values):
            return None
        wanted = names.union(EXTREMES) if LOSS in names else names
        values = {name: value for name, value in self.values.items() if name in wanted}
        counts = {name: count for name, count in self.counts.items() if name in wanted}
        return HistoryPoint(self.position, self.sequence, self.at, self.step, self.source, values, self.count, counts)


def merge(earlier: HistoryPoint, later: HistoryPoint) -> HistoryPoint:
    """One point for both: each value is the mean over the points that had it. The extremes of the loss are kept."""
    count = earlier.count + later.count
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name in {**earlier.values, **later.values}:
        if name in EXTREMES:
            continue
        had_by = [(each.values[name], each.count_of(name)) for each in (earlier, later) if name in each.values]
        total = sum(weight for _, weight in had_by)
        values[name] = sum(value * (weight / total) for value, weight in had_by)
        if total != count:
            counts[name] = total
    for name, extreme in ((LOSS_MIN, min), (LOSS_MAX, max)):
        found = [each.values.get(name, each.values.get(LOSS)) for each in (earlier, later)]
        if known := [value for value in found if value is not None]:
            values[name] = extreme(known)
    return HistoryPoint(later.position, later.sequence, later.at, later.step, later.source, values, count, counts)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
