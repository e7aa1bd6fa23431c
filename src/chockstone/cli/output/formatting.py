"""Formats sizes, durations, times, metrics and text from archives for people, and parses what people write."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from chockstone.wire.sizes import DECIMAL_UNITS
from chockstone.wire.sizes import format_size as format_size

_BINARY_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])\Z")
_BEST = re.compile(r"(?P<metric>.+?)(?::(?P<mode>min|max)(?::(?P<count>[1-9]\d{0,8}))?)?\Z")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGTPE]?)(i?)B?\Z")
_OFF: Final = ("off", "none")
_DEEPEST: Final = 300


def printable(text: str) -> str:
    """``text`` with everything escaped that could move a cursor, change a colour or hide a letter."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def format_duration(seconds: float) -> str:
    """One unit, rounded down; enough to tell this morning's checkpoint from last week's."""
    seconds = max(0.0, seconds)
    for limit, unit_seconds, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit_seconds)} {unit}"
    return f"{int(seconds // 86_400)} days"


def format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def format_metrics(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{printable(name)}={value:.6g}" for name, value in metrics.items())


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_states(states: Iterable[str]) -> str:
    """How many checkpoints are in each state: ``2 ok, 1 damaged``."""
    counts = Counter(states)
    good = counts.pop("good", 0)
    return ", ".join((f"{good:,} ok", *(f"{count:,} {state}" for state, count in (counts or {"damaged": 0}).items())))


def parse_duration(text: str) -> float:
    """Seconds from ``90s``, ``15m``, ``12h``, ``7d`` or ``2w``."""
    match = _DURATION.match(text)
    if match is None or not (seconds := float(match[1]) * _SECONDS[match[2]]):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 90s, 15m, 12h, 7d or 2w")
    return seconds


def parse_size(text: str) -> int:
    """Bytes from ``50GiB``, ``500MB`` or a plain number of them."""
    match = _SIZE.match(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not a size: write bytes, or a number and a unit, such as 500MB or 50GiB")
    unit_bytes: int = (1024 if match[3] else 1000) ** " KMGTPE".index(match[2].upper() or " ")
    return round(float(match[1]) * unit_bytes)


def is_off(text: str) -> bool:
    """Whether a word says that something is not wanted."""
    return text.lower() in _OFF


def write_duration(seconds: float) -> str:
    """As ``parse_duration`` reads it, with nothing lost."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.15g}s"


def write_size(size_bytes: int) -> str:
    """As ``parse_size`` reads it, with nothing lost, in the unit that needs fewest digits."""
    spelled = [str(size_bytes)]
    for base, units in ((1000, DECIMAL_UNITS), (1024, _BINARY_UNITS)):
        for power, unit in enumerate(units, 1):
            if size_bytes and size_bytes % base**power == 0:
                spelled.append(f"{size_bytes // base**power}{unit}")
    return min(spelled, key=len)


def write_best(metric: str, mode: str, count: int) -> str:
    return f"{metric}:{mode}:{count}"


def parse_best(text: str) -> tuple[str, Literal["min", "max"], int]:
    """Metric, mode and count from ``METRIC[:min|max[:COUNT]]``."""
    match = _BEST.match(text)
    if match is None:
        raise ValueError("name a metric, such as loss, accuracy:max or loss:min:3")
    if match["mode"] is None and ":" in text:
        raise ValueError(
            f"{text!r} does not say whether the lowest or the highest value is the best: write METRIC:min or METRIC:max"
            f" and perhaps a count, as in accuracy:max or loss:min:3. A metric with a colon in its name needs it, too."
        )
    return match["metric"], "max" if match["mode"] == "max" else "min", int(match["count"] or 1)


def plain(value: Any, depth: int = 0) -> Any:  # Any: JSON in, JSON out
    """``value`` as strict JSON: times in ISO form, nan and infinities as strings, bounded depth."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value.isoformat() if isinstance(value, datetime) else value
