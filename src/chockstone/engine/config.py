"""Durability: what a run survives, and how long it takes to come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chockstone.checkpoints import Retention

JournalMode = Literal["off", "on", "synced"]
OnJournalLoss = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Durability:
    journal: JournalMode = "on"  # on: survives the death of processes; synced: of the machine too
    steps: int = 200  # optimizer steps between recovery archives, at most
    replay_seconds: float = 30.0  # replay takes about that long, at most
    journal_bytes: int = 4 << 30  # of one run's journal, at which it waits for a recovery archive
    on_journal_loss: OnJournalLoss = "fail"  # of a run whose journal lost acknowledged operations


class Busy(Exception):
    """Too much is queued; the same request will be taken in a moment. Answered with 429."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
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


@dataclass(frozen=True, slots=True)
class StorageRules:
    retention: Retention = field(default_factory=Retention)
    user_quota_bytes: int | None = None  # of all checkpoints of one user
    run_quota_bytes: int | None = None
    reserve_bytes: int = 1 << 30  # of the disk, never written into
    trash_seconds: float = 0.0  # how long what was removed can be restored; 0: it is gone at once
    sweep_seconds: float = 60.0  # between two looks for what has to go
    scrub_bytes_per_second: int = 16 << 20  # read again to check digests; 0: never
    scrub_every_seconds: float = 7 * 24 * 3600.0  # each checkpoint at most this often
