"""Accelerate: ``save_state`` and ``load_state`` of an Accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.adapters.host import Finish, Host, Way, Ways
from benchmarks.adapters.training import Training


@contextmanager
def open_ways(training: Training, directory: Path) -> Iterator[Ways]:
    from accelerate import Accelerator

    from chockstone.integrations.accelerate import ArchiveAccelerator

    own, ours = Accelerator(cpu=True), ArchiveAccelerator(cpu=True)
    for each in (own, ours):
        each.prepare(training.model, training.optimizer)
    numbers = count(1)

    def start_own() -> Finish:
        path = directory / "own" / f"checkpoint_{next(numbers)}"
        own.save_state(str(path))
        return lambda: path

    def start_ours() -> Finish:
        path = Path(ours.save_state(directory / "archives" / f"checkpoint_{next(numbers)}"))

        def finish() -> Path:
            ours.wait_for_saves()
            return path

        return finish

    try:
        yield Ways(
            own=Way(start_own, lambda path: own.load_state(str(path))),
            ours=Way(start_ours, lambda path: _take(ours.load_state(path))),
        )
    finally:
        ours.end_training()


def _take(receipt: object) -> None:
    assert receipt is not None


HOST = Host("accelerate", "save_state", "ArchiveAccelerator", package="accelerate", open=open_ways)
