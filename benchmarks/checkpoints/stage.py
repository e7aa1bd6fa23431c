"""Stage: one state with everything its measures share, from its limits to who takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints.contestant import Absent, Contestant
from benchmarks.checkpoints.free_memory import FreeMemory
from benchmarks.checkpoints.limits import VARIANTS, Limits, Variant
from benchmarks.checkpoints.rounds import Series
from benchmarks.checkpoints.states import State

TOO_SLOW = "too slow for a quick run"


@dataclass(frozen=True, slots=True)
class Stage:
    state: State
    target: State  # the same shapes, to restore into
    limits: Limits
    directory: Path
    contestants: list[Contestant]
    absent: list[Absent]
    repeats: int
    memory: FreeMemory
    say: Callable[[str], None]

    def with_absent(self, series: dict[str, Series]) -> dict[str, Series]:
        """Every contestant that could not even start has its row and its reason, too."""
        return series | {absence.name: Series(failure=absence.reason) for absence in self.absent}


def keep_best(series: dict[str, Series], limit_name: str, variants: Iterable[Variant] = VARIANTS) -> dict[str, Series]:
    """Replace the variants of a limit by the one with the lowest median."""
    kept = dict(series)
    tried = {variant: kept.pop(variant_name(limit_name, variant)) for variant in variants}
    ran = {variant: one for variant, one in tried.items() if one.median("seconds") is not None}
    if not ran:
        return kept | {limit_name: Series(failure=next(iter(tried.values())).failure)}
    best = min(ran, key=lambda variant: ran[variant].median("seconds") or 0.0)
    ran[best].note = f"best of {len(tried)}: {best.title}"
    return {limit_name: ran[best]} | kept


def variant_name(limit_name: str, variant: Variant) -> str:
    return f"{limit_name}, {variant.title}"
