"""Settings of the engine: durability, limits and storage rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chockstone.checkpoints import Retention

JournalMode = Literal["off", "on", "synced"]
OnJournalLoss = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Durability:
    journal: JournalMode = "on"  # on: survives killed processes; synced: also a power failure
    steps: int = 200  # maximum optimizer steps between recovery archives
    replay_seconds: float = 30.0  # about the maximum duration of a replay
    journal_bytes: int = 4 << 30  # a run whose journal is larger waits for a recovery archive
    on_journal_loss: OnJournalLoss = "fail"  # what to do with a run whose journal lost acknowledged operations


class Busy(Exception):
    """Too much is queued; the same request will be taken in a moment. Answered with 429."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    operations_per_run: int = 4096
    samples: int = 8192
    queued_bytes: int = 4 << 30  # maximum size of all queued request bodies together
    runs: int = 64  # maximum number loaded at a time
    park_seconds: float = 1800.0  # a session's runs are parked after this long without client activity
    forget_seconds: float = 30 * 86400.0  # a session is finished after this long without client activity
    deaths: int = 3  # a request fails after this many workers died while it ran
    attempts: int = 10  # a request fails after this many servers died while it ran
    anonymous_samplers: int = 16  # the newest of each run, kept even if unused
    anonymous_idle_seconds: float = 900.0  # older ones are freed after this long without use


@dataclass(frozen=True, slots=True)
class StorageRules:
    retention: Retention = field(default_factory=Retention)
    user_quota_bytes: int | None = None  # of all checkpoints of one user
    run_quota_bytes: int | None = None
    reserve_bytes: int = 1 << 30  # free disk space that no save may use
    trash_seconds: float = 0.0  # how long a removed checkpoint can be undeleted; 0: it is deleted at once
    sweep_seconds: float = 60.0  # between two sweeps
    scrub_bytes_per_second: int = 16 << 20  # read again to check digests; 0: never
    scrub_every_seconds: float = 7 * 24 * 3600.0  # each checkpoint at most this often
    conversation_quota_bytes: int = 1 << 30  # of all stored conversations of one user; 0: none are stored
