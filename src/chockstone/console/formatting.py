"""Formatting: numbers, sizes, durations and ids as people read them on a page. Filters of the templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from markupsafe import Markup

from chockstone.wire.sizes import format_size

MISSING: Final = "–"
_THOUSANDS: Final = ("", "k", "M", "G", "T")
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_MOST_TITLE: Final = 80  # characters


class NamedRun(Protocol):
    @property
    def run_id(self) -> str: ...
    @property
    def user_metadata(self) -> Mapping[str, str]: ...
    @property
    def state(self) -> str: ...
    @property
    def queue_depth(self) -> int: ...


def size(size_bytes: float | None) -> str:
    """``1.4 GB``, as on the command line."""
    return MISSING if size_bytes is None else format_size(round(size_bytes))


def count(number: float | None) -> str:
    """``12,345``, and from a million on ``12.3M``."""
    if number is None or not math.isfinite(number):
        return MISSING
    if abs(number) < 1_000_000:
        return f"{number:,.0f}"
    return short_count(number)


def short_count(number: float | None) -> str:
    """``12.3k``."""
    if number is None or not math.isfinite(number):
        return MISSING
    value, unit = float(number), 0
    while abs(value) >= 999.5 and unit < len(_THOUSANDS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0 and (value == int(value) or abs(value) >= 100):
        return f"{value:.0f}"
    return f"{value:.3g}{_THOUSANDS[unit]}"


def metric(value: float | None) -> str:
    """A loss or another measured number, with four significant digits."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2e}"


def duration(seconds: float | None) -> str:
    """``850 ms``, ``12.4 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 d 3 h``."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 or not seconds else f"{seconds * 1000:.2g} ms"
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    for unit, name, smaller, smaller_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if seconds >= unit:
            rest = int(seconds % unit // smaller)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return MISSING


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.0f} %"


def moment(at: datetime | float | None) -> Markup | str:
    """A ``time`` element; the page's script shows how long ago it was, and the exact time on hover."""
    if at is None:
        return MISSING
    when = (at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)).astimezone(UTC)
    text = when.strftime("%Y-%m-%d %H:%M")
    return Markup('<time datetime="{}" data-ago title="{} UTC">{}</time>').format(
        when.isoformat(timespec="seconds"), when.strftime("%Y-%m-%d %H:%M:%S"), text
    )


def short_run(run_id: str) -> str:
    """The run's number behind the first characters of its session: ``3f2a9c1b…:train:0`` is ``3f2a9c1b:0``."""
    session, _, number = run_id.partition(":train:")
    return f"{session[:8]}:{number}" if number else run_id[:24]


def run_title(run: NamedRun) -> str:
    """The name that a script gave the run in its metadata, or else its short id."""
    return run.user_metadata.get("name", "").strip()[:_MOST_TITLE] or short_run(run.run_id)


def state_kind(run: NamedRun) -> str:
    """The kind of badge for a run's state. One whose operations run now pulses."""
    if run.state == "ready":
        return "live" if run.queue_depth else "ok"
    return {"recovering": "warn", "waiting": "warn", "held": "bad", "lost": "bad"}.get(run.state, "plain")


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "size": size,
    "count": count,
    "short_count": short_count,
    "metric": metric,
    "duration": duration,
    "percent": percent,
    "moment": moment,
    "short_run": short_run,
    "run_title": run_title,
    "state_kind": state_kind,
}
