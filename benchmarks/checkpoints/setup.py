"""Set-up: who takes part, and the state that is measured now with everything its measures share.

States are large, so only one is in memory at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.checkpoints import ours, peers, states
from benchmarks.checkpoints.contestant import Absent, Contestant
from benchmarks.checkpoints.limits import VARIANTS, Limits, Variant
from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.free_memory import FreeMemory, free_memory
from benchmarks.harness.rounds import Rows, Series

TOO_SLOW = "too slow for a quick run"

REPEATS = {"L": 5, "F": 5}
QUICK_REPEATS = {"L": 5, "F": 1}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One state, and everything that its measures share."""

    state: State
    target: State  # the same shapes, to restore into
    limits: Limits
    directory: Path
    contestants: list[Contestant]
    absent: list[Absent]
    repeats: int
    memory: FreeMemory

    def with_absent(self, rows: Rows) -> Rows:
        """Every contestant that could not even start has its row and its reason, too."""
        return rows | {absence.name: Series(failure=absence.reason) for absence in self.absent}


class Setup:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._prepared: Prepared | None = None

    @cached_property
    def peers(self) -> list[Contestant | Absent]:
        self._context.say("starting the peers")
        found = peers.gather(self._context.directory)
        gc.freeze()  # so that collecting between contestants does not walk every module they imported
        return found

    def prepare(self, context: Context, name: str) -> Prepared:
        """The state of this name. Another one that was in memory is freed first."""
        if self._prepared is None or self._prepared.state.name != name:
            self.release()
            context.say("filling the state")
            self._prepared = self._make(name)
        state = self._prepared.state
        context.describe(f"{name}, {state.title}, {state.size_bytes / 1e6:,.0f} MB in {state.tensor_count} tensors")
        return self._prepared

    def release(self) -> None:
        """Frees the state, and ends our contestant, which has a buffer of its size."""
        if self._prepared is not None:
            for contestant in self._prepared.contestants:
                if contestant.name == ours.NAME:
                    contestant.close()
        self._prepared = None
        gc.collect()

    def close(self) -> None:
        """Frees the state, and ends all contestants; a measure that needs them later starts them anew."""
        self.release()
        for peer in vars(self).pop("peers", ()):  # where they were started
            if isinstance(peer, Contestant):
                peer.close()

    def _make(self, name: str) -> Prepared:
        directory, quick = self._context.directory, self._context.quick
        state = states.make(name, quick=quick)
        everyone = [_ours(directory / f"chockstone-{name}"), *self.peers]
        return Prepared(
            state=state,
            target=state.zeros_like(),
            limits=Limits(state),
            directory=directory,
            contestants=[each for each in everyone if isinstance(each, Contestant)],
            absent=[each for each in everyone if isinstance(each, Absent)],
            repeats=(QUICK_REPEATS if quick else REPEATS)[name],
            memory=free_memory(self._context.temperature, state.size_bytes),
        )


@contextmanager
def set_up(context: Context) -> Iterator[Setup]:
    setup = Setup(context)
    try:
        yield setup
    finally:
        setup.close()


def keep_best(rows: Rows, limit_name: str, variants: Iterable[Variant] = VARIANTS) -> Rows:
    """Replace the variants of a limit by the one with the lowest median."""
    kept = dict(rows)
    tried = {variant: kept.pop(variant_name(limit_name, variant)) for variant in variants}
    ran = {variant: one for variant, one in tried.items() if one.median("seconds") is not None}
    if not ran:
        return kept | {limit_name: Series(failure=next(iter(tried.values())).failure)}
    best = min(ran, key=lambda variant: ran[variant].median("seconds") or 0.0)
    ran[best].note = f"best of {len(tried)}: {best.title}"
    return {limit_name: ran[best]} | kept


def variant_name(limit_name: str, variant: Variant) -> str:
    return f"{limit_name}, {variant.title}"


def _ours(directory: Path) -> Contestant | Absent:
    directory.mkdir(exist_ok=True)
    try:
        return ours.contestant(directory)
    except ImportError as error:
        return Absent(ours.NAME, f"ImportError: {error}")
