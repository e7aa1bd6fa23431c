"""Limits: how much the engine takes on before it asks clients to slow down."""

from __future__ import annotations

from dataclasses import dataclass


class Busy(Exception):
    """Too much is queued; the same request will be taken in a moment. Answered with 429."""


@dataclass(frozen=True, slots=True)
class Limits:
    operations_per_run: int = 4096
    samples: int = 8192
    queued_bytes: int = 4 << 30  # bodies that wait, of all requests together
    runs: int = 64  # loaded at a time
    silence_seconds: float = 1800.0  # after which a session that nobody hears of is over
    unnamed_samplers: int = 16  # of one run, kept however long they were not sampled from
    unnamed_idle_seconds: float = 900.0  # after which older ones are freed
