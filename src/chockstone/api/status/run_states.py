"""Run states: one word for how a run is, whether it is in memory or only in the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chockstone.catalog import RunRow
from chockstone.catalog.tables.runs import RunState as StoredState
from chockstone.engine.engine import Engine
from chockstone.engine.runs.run import Held, Lost, Ready, Recovering, Run, Waiting
from chockstone.wire.messages.operations.runs import OperatedRunState

_NOT_LOADED: Final = (
    "the run is not loaded yet: the server is reading its journal, or as many runs are loaded as may be; "
    "the next request of its client loads it"
)
# What a run is that is not in memory. An active one was left by an earlier server.
STORED: Final[Mapping[OperatedRunState, tuple[StoredState, ...]]] = {
    "ready": (),
    "recovering": (),
    "waiting": ("active",),
    "held": (),
    "lost": ("lost",),
    "parked": ("parked",),
    "unloaded": ("unloaded",),
}
_SHOWN: Final[Mapping[StoredState, OperatedRunState]] = {
    stored: shown for shown, all_stored in STORED.items() for stored in all_stored
}


@dataclass(frozen=True, slots=True)
class ShownState:
    state: OperatedRunState
    waits_for: str | None = None  # why it is not ready; None of a run that is unloaded or parked


def state_of(engine: Engine, row: RunRow) -> ShownState:
    """From the live run: the catalog is updated later."""
    if (run := engine.runs.get(row.run_id)) is not None:
        return live_state(engine, run)
    shown = _SHOWN[row.state]
    return ShownState(shown, row.failure if shown == "lost" else _NOT_LOADED if shown == "waiting" else None)


def live_state(engine: Engine, run: Run) -> ShownState:
    match run.state:
        case Lost(reason):
            return ShownState("lost", reason)
        case Held(reason):
            return ShownState("held", reason)
        case Recovering(reason):
            return ShownState("recovering", reason)
        case Waiting(reason):
            return ShownState("waiting", reason)
        case Ready():
            return _ready_state(engine, run)


def _ready_state(engine: Engine, run: Run) -> ShownState:
    """A run that has not noticed yet that its worker is gone is not ready."""
    if engine.journal_trouble is not None:
        return ShownState("waiting", f"the journal cannot be written: {engine.journal_trouble}")
    if not engine.is_ready:
        return ShownState("waiting", "the worker is being started, and the models are being loaded")
    if not engine.holds(run):
        return ShownState("recovering" if run.generation else "waiting", "the worker does not have the run yet")
    return ShownState("ready")


def live_states(engine: Engine, owner: str | None = None) -> dict[str, OperatedRunState]:
    """The state of each live run, by id; of all users when ``owner`` is None."""
    return {run.run_id: live_state(engine, run).state for run in engine.runs if owner in (None, run.owner)}


async def count_by_state(engine: Engine, owner: str | None) -> dict[str, int]:
    """How many runs are in each state that has any; of all users when ``owner`` is None."""
    live = live_states(engine, owner)
    counts: Counter[str] = Counter(live.values())
    stored = await engine.catalog.run_search.count_by_state(owner, but=live)
    for state, count in stored.items():
        counts[_SHOWN[state]] += count
    return {state: counts[state] for state in STORED if counts[state]}
