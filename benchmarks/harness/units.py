"""Units: how numbers are written in tables, in plots and beside bounds."""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[float], str]


def times(ratio: float) -> str:
    return f"{ratio:.2f}×"


def percent(share: float) -> str:
    return f"{share * 1e2:.1f} %"


def signed_percent(share: float) -> str:
    return f"{share * 1e2:+.1f} %"


def seconds(value: float) -> str:
    return f"{value:.1f} s"


def precise_seconds(value: float) -> str:
    return f"{value:.2f} s"


def milliseconds(value: float) -> str:
    """Of a value in seconds."""
    return f"{value * 1e3:.1f} ms"


def duration(value: float) -> str:
    """Of a value in seconds, in the unit that suits its size."""
    size = abs(value)
    if size >= 10:
        return f"{value:.1f} s"
    if size >= 0.1:
        return f"{value * 1e3:.0f} ms"
    return f"{value * 1e3:.1f} ms" if size >= 1e-3 or size < 5e-7 else f"{value * 1e6:.0f} µs"


def count(value: float) -> str:
    return f"{value:,.0f}"


def megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def whole_megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def megabytes_per_second(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.0f} MB/s"


def exponent(value: float) -> str:
    return f"n^{value:.2f}"
