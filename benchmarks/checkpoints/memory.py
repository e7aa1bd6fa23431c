"""Memory: how far a save in the background raises the peak memory of the process.

Each contestant is measured in a fresh process, where nothing has grown before: import, one tiny save, then
the peak over two full saves against the resident memory just before them. What a peer keeps in a process of
its own is not counted.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoints import ours, peers, states
from benchmarks.checkpoints.accounting import peak_resident_bytes, reset_peak, resident_bytes
from benchmarks.checkpoints.contestant import Absent, Contestant
from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.rounds import Series

TIMEOUT_SECONDS = 300


def measure_memory(
    names: list[str], *, make_state: Callable[[], states.State], directory: Path, say: Callable[[str], None]
) -> dict[str, Series]:
    return {name: _measure_apart(name, make_state, directory, say) for name in names}


def _measure_apart(
    name: str, make_state: Callable[[], states.State], directory: Path, say: Callable[[str], None]
) -> Series:
    say(f"in a process of its own: {name}")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_probe, args=(name, make_state, directory, sender))
    process.start()
    sender.close()
    series = Series()
    try:
        if not receiver.poll(TIMEOUT_SECONDS):
            raise TimeoutError(f"no answer in {TIMEOUT_SECONDS} seconds")
        answer = receiver.recv()
    except (EOFError, TimeoutError) as error:
        series.failure = f"the process of {name!r} ended without an answer: {error}"
    else:
        if isinstance(answer, str):
            series.failure = answer
        else:
            series.add({"extra_bytes": float(answer)})
    if process.is_alive() and series.failure is not None:
        process.terminate()
    process.join()
    return series


def _probe(name: str, make_state: Callable[[], states.State], directory: Path, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    with TemporaryDirectory(dir=directory, prefix="memory-") as scratch:
        try:
            sender.send(_extra_bytes(name, make_state(), Path(scratch)))
        except Exception as error:  # recorded: the parent shows it as "not run"
            sender.send(f"{type(error).__name__}: {error}")


def _extra_bytes(name: str, state: states.State, scratch: Path) -> int:
    contestant = _find(name, scratch)
    try:
        _save(contestant, states.of_size(1_000_000, 10))
        before = resident_bytes()
        reset_peak()
        _save(contestant, state)
        _save(contestant, state)
        return peak_resident_bytes() - before
    finally:
        contestant.close()


def _save(contestant: Contestant, state: states.State) -> None:
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
