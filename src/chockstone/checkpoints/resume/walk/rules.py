"""Rules: what a caller may decide about a walk. Only the one that says so makes it start at zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chockstone.checkpoints.restoring.walk_back import OnUnreadable
from chockstone.checkpoints.resume.attempts.flyte_native import StockForm


@dataclass(frozen=True, slots=True)
class ResumeRules:
    on_unreadable: OnUnreadable = "stop"
    legacy: Literal["accept", "reject"] = "accept"  # what a stock writer left
    stock: StockForm | None = None  # how it would have left it; None: nobody does here
    poison_after: int | None = None  # restores that were begun and failed; None: not counted
    deadline_seconds: float = 120.0
    fresh_start: bool = False  # the caller wants zero, whatever there is
