"""Memory: how far a save in the background raises the peak memory of the process.

Each contestant is measured in a new process, where nothing has grown before: import, one tiny save, then
the peak over two full saves against the resident memory just before them. What a peer keeps in a process of
its own is not counted.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.checkpoints import ours, peers, states
from benchmarks.checkpoints.accounting import peak_resident_bytes, reset_peak, resident_bytes
from benchmarks.checkpoints.contestant import Absent, Contestant
from benchmarks.checkpoints.setup import Setup
from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove
from benchmarks.harness.remote import RemoteFailed, RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Series, reason_of

TIMEOUT_SECONDS = 300.0


def measure_memory(context: Context, setup: Setup, *, state: str) -> Rows:
    names = [ours.NAME]
    if not context.quick:
        names += [peer.name for peer in setup.peers if isinstance(peer, Contestant) and peer.start is not None]
    setup.release()  # the processes need the memory
    context.describe(state)
    return {name: _measure(context, name, state, context.directory / str(number)) for number, name in enumerate(names)}


def _measure(context: Context, name: str, state: str, directory: Path) -> Series:
    context.say(f"in a process of its own: {name}")
    directory.mkdir()  # of its own: DCP's rendezvous file serves one process
    series = Series()
    try:
        with RemoteObject(
            __name__,
            "Probe",
            answer_seconds=TIMEOUT_SECONDS,
            contestant=name,
            directory=directory,
            state=state,
            quick=context.quick,
        ) as probe:
            series.add(probe.call("save"))
    except RemoteFailed as error:
        series.failure = reason_of(error)
    return series


class Probe:
    """Runs in the process that is measured."""

    def __init__(self, contestant: str, directory: Path, state: str, *, quick: bool) -> None:
        self._contestant = _find(contestant, directory)
        self._state = states.make(state, quick=quick)

    def save(self) -> Metrics:
        """The extra memory of two saves, in bytes and in sizes of the state."""
        try:
            _save(self._contestant, states.of_size(1_000_000, 10))
            before = resident_bytes()
            reset_peak()
            _save(self._contestant, self._state)
            _save(self._contestant, self._state)
            extra = peak_resident_bytes() - before
        finally:
            self._contestant.close()
        return {"extra_bytes": float(extra), "states": extra / self._state.size_bytes}


def _save(contestant: Contestant, state: State) -> None:
    if contestant.start is None:
        raise ValueError(f"{contestant.name!r} has no save in the background")
    remove(contestant.start(state)())


def _find(name: str, directory: Path) -> Contestant:
    if name == ours.NAME:
        return ours.contestant(directory)
    for entry in peers.gather(directory):
        if entry.name == name:
            if isinstance(entry, Absent):
                raise RuntimeError(entry.reason)
            return entry
    raise LookupError(f"no contestant is called {name!r}")
