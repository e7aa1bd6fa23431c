"""Sizes: bytes as refusals spell them, exact and for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")


def spell_bytes(size_bytes: int) -> str:
    """``20480 bytes (20.5 kB)``."""
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    number = float(size_bytes)
    for unit in _UNITS:
        number /= 1000
        if number < 999.95 or unit == _UNITS[-1]:
            break
    return f"{size_bytes} bytes ({number:.1f} {unit})"
