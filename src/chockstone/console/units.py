"""Units: amounts of time and of bytes that a form has as a number and a unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

from chockstone.wire.failures import BadRequest

TIME_UNITS: Final[Mapping[str, int]] = {"minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}
BYTE_UNITS: Final[Mapping[str, int]] = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS: Final = {"time": TIME_UNITS, "bytes": BYTE_UNITS}


def read_amount(form: Mapping[str, str], name: str, *, units: Literal["time", "bytes"]) -> float | None:
    """Seconds or bytes of the fields ``name`` and ``name_unit``; None: the field is empty. Raises BadRequest."""
    text = form.get(name, "").strip()
    if not text:
        return None
    unit = form.get(f"{name}_unit", "")
    known = _UNITS[units]
    if unit not in known:
        raise BadRequest(f"{unit[:80]!r} is not a unit of {name}; there are {', '.join(known)}")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0 or number * known[unit] > 1e15:
        raise BadRequest(f"{text[:80]!r} is not a number of {unit}; leave it empty for none")
    return number * known[unit]


def read_count(form: Mapping[str, str], name: str) -> int | None:
    """A whole number from 1 up; None: the field is empty. Raises BadRequest."""
    text = form.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 18 or int(text) < 1:
        raise BadRequest(f"{name}: {text[:80]!r} is not a whole number from 1 up; leave it empty for no such rule")
    return int(text)


def split_amount(value: float | None, units: Mapping[str, int]) -> tuple[str, str]:
    """The number and the largest unit that shows it without a fraction, for a form; empty for None."""
    if value is None:
        return "", list(units)[-2]
    for unit, size in reversed(list(units.items())):
        if value >= size and value % size == 0:
            return f"{value / size:g}", unit
    smallest, size = next(iter(units.items()))
    return f"{value / size:g}", smallest
