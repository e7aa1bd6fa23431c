"""Probing: a first look at many places at once, within a time that is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final

from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate
from chockstone.checkpoints.resume.attempts.flyte_native import StockForm
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces

WIDTH: Final = 16

Look = Attempt | Exception


class Deadline:
    """Time left for deciding. What a restore takes is given back: bytes may take as long as they take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def extend(self, seconds: float) -> None:
        self._ends += seconds

    def trouble(self, uri: str) -> StoreUnreachable:
        return StoreUnreachable(f"{uri} could not be judged within the {self.seconds:.0f} s that a decision may take")


def probe(
    places: AttemptPlaces, candidates: Sequence[Candidate], deadline: Deadline, stock: StockForm | None = None
) -> list[Look]:
    """Each candidate's attempt, or the error that looking at it ended with.

    In daemon threads: a store that says nothing does not keep the program from ending.
    """
    futures: list[Future[Attempt]] = [Future() for _ in candidates]
    work: SimpleQueue[tuple[Candidate, Future[Attempt]] | None] = SimpleQueue()
    for pair in zip(candidates, futures, strict=True):
        work.put(pair)
    width = min(WIDTH, len(candidates))
    for _ in range(width):
        work.put(None)
    for _ in range(width):
        threading.Thread(target=_look_at_each, args=(places, stock, work), name="chockstone-probe", daemon=True).start()
    return [_outcome(*pair, deadline) for pair in zip(candidates, futures, strict=True)]


def _look_at_each(
    places: AttemptPlaces, stock: StockForm | None, work: SimpleQueue[tuple[Candidate, Future[Attempt]] | None]
) -> None:
    while (item := work.get()) is not None:
        candidate, future = item
        try:
            future.set_result(Attempt.look(places.open(candidate.uri), stock))
        except BaseException as error:  # noqa: BLE001  # whoever waits for the future gets it
            future.set_exception(error)


def _outcome(candidate: Candidate, future: Future[Attempt], deadline: Deadline) -> Look:
    try:
        return future.result(deadline.left)
    except TimeoutError:
        return deadline.trouble(candidate.uri)
    except Exception as error:  # noqa: BLE001  # judged where the walk comes to it
        return error
