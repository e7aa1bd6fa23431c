"""List many places concurrently, within a deadline."""

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
from chockstone.checkpoints.resume.attempts.flyte_native import FlyteNativeForm
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces

WIDTH: Final = 16

ProbeResult = Attempt | Exception


class Deadline:
    """Time left to decide. The time of a restore does not count: see ``extend``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def extend(self, seconds: float) -> None:
        self._ends += seconds

    def error(self, uri: str) -> StoreUnreachable:
        return StoreUnreachable(f"{uri} could not be judged within the {self.seconds:.0f} s that a decision may take")


def probe(
    places: AttemptPlaces,
    candidates: Sequence[Candidate],
    deadline: Deadline,
    flyte_native: FlyteNativeForm | None = None,
) -> list[ProbeResult]:
    """Return the attempt of each candidate, or the error of listing it.

    Runs in daemon threads, so that a store which does not answer cannot keep the program from ending.
    """
    futures: list[Future[Attempt]] = [Future() for _ in candidates]
    work: SimpleQueue[tuple[Candidate, Future[Attempt]] | None] = SimpleQueue()
    for pair in zip(candidates, futures, strict=True):
        work.put(pair)
    width = min(WIDTH, len(candidates))
    for _ in range(width):
        work.put(None)
    for _ in range(width):
        arguments = (places, flyte_native, work)
        threading.Thread(target=_inspect_each, args=arguments, name="chockstone-probe", daemon=True).start()
    return [_result(*pair, deadline) for pair in zip(candidates, futures, strict=True)]


def _inspect_each(
    places: AttemptPlaces,
    flyte_native: FlyteNativeForm | None,
    work: SimpleQueue[tuple[Candidate, Future[Attempt]] | None],
) -> None:
    while (pair := work.get()) is not None:
        candidate, future = pair
        try:
            future.set_result(Attempt.inspect(places.open(candidate.uri), flyte_native))
        except BaseException as error:  # noqa: BLE001  # ``_result`` raises it
            future.set_exception(error)


def _result(candidate: Candidate, future: Future[Attempt], deadline: Deadline) -> ProbeResult:
    try:
        return future.result(deadline.left)
    except TimeoutError:
        return deadline.error(candidate.uri)
    except Exception as error:  # noqa: BLE001  # judged when the walk reaches the candidate
        return error
