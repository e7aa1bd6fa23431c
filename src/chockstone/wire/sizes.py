"""Formats sizes in bytes for messages."""

from __future__ import annotations

from typing import Final

DECIMAL_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")


def format_size(size_bytes: int) -> str:
    """For people: ``20.5 kB``."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    number = float(size_bytes)
    for unit in DECIMAL_UNITS:
        number /= 1000
        if number < 999.95 or unit == DECIMAL_UNITS[-1]:
            break
    return f"{number:.1f} {unit}"


def format_bytes(size_bytes: int) -> str:
    """Exact, and for people besides: ``20480 bytes (20.5 kB)``."""
    return f"{size_bytes} bytes" if size_bytes < 1000 else f"{size_bytes} bytes ({format_size(size_bytes)})"
