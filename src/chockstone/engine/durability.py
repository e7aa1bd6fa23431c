"""Durability: what a run survives, and how long it takes to come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JournalMode = Literal["off", "on", "synced"]
OnJournalLoss = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Durability:
    journal: JournalMode = "on"  # on: survives the death of processes; synced: of the machine too
    steps: int = 200  # optimizer steps between recovery archives, at most
    replay_seconds: float = 30.0  # replay takes about that long, at most
    journal_bytes: int = 4 << 30  # of one run's journal, at which it waits for a recovery archive
    on_journal_loss: OnJournalLoss = "fail"  # of a run whose journal lost acknowledged operations
