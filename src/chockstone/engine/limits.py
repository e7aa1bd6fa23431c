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
    park_seconds: float = 1800.0  # of silence, after which a session's runs are parked
    forget_seconds: float = 30 * 86400.0  # of silence, after which a session is over
    deaths: int = 3  # of workers, after which the request that they died of is failed by name
    attempts: int = 10  # of servers that died while a request was under way, after which it is failed, too
    unnamed_samplers: int = 16  # of one run, kept however long they were not sampled from
    unnamed_idle_seconds: float = 900.0  # after which older ones are freed
