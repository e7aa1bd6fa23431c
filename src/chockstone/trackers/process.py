"""The tracker process: takes batches from the engine over a socket, passes them to one tracker, and answers each.

A process of its own keeps a tracker's threads, memory, imports and crashes away from the server. It ends when the
server does: a thread watches the socket, so that a tracker that hangs does not keep the process alive.

A request is a line of JSON: {"run": …, "points": [[position, at, step, values], …], "checkpoints": [[path, kind, step,
at], …]}. Its answer is {} or {"error": TEXT}.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from chockstone.trackers.tracker import TrackedCheckpoint, TrackedPoint, TrackedRun, Tracker

_IDLE_SECONDS: Final = 900.0  # after which a run is closed; its next point opens it again
_CHECK_SECONDS: Final = 60.0
_MAX_OPEN: Final = 64  # runs
_LAST_SECONDS: Final = 10.0  # to flush when the server is gone
_MAX_ERROR: Final = 500
_NICENESS: Final = 10  # trackers leave the cores to training


def open_tracker(kind: str, directory: Path) -> Tracker:
    """Raises ExtraMissing, and KeyError for an unknown kind."""
    if kind == "tensorboard":
        from chockstone.trackers.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker(directory / "tensorboard")
    if kind == "mlflow":
        from chockstone.trackers.mlflow_tracker import MlflowTracker

        return MlflowTracker(directory)
    if kind == "wandb":
        from chockstone.trackers.wandb_tracker import WandbTracker

        return WandbTracker(directory)
    if kind == "trackio":
        from chockstone.trackers.trackio_tracker import TrackioTracker

        return TrackioTracker()
    raise KeyError(kind)


class TrackerService:
    """Answers requests, one at a time. Closes runs that have been idle for long, and the longest idle of too many."""

    def __init__(self, open_it: Callable[[], Tracker], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._open_it = open_it
        self._monotonic = monotonic
        self._tracker: Tracker | None = None
        self._used: dict[str, float] = {}  # by open run: when; the longest idle first

    def answer(self, line: bytes) -> bytes:
        try:
            self._handle(json.loads(line))
        except Exception as error:  # noqa: BLE001  # the engine logs it, and sends the batch again later
            text = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
            return json.dumps({"error": text}).encode() + b"\n"
        return b"{}\n"

    def tidy(self) -> None:
        """Close runs that are idle. A failure costs nothing: the run is opened again if it has points."""
        now = self._monotonic()
        for run_id, used in list(self._used.items()):
            if now - used > _IDLE_SECONDS or len(self._used) > _MAX_OPEN:
                self._close(run_id)

    def shut_down(self) -> None:
        if self._tracker is not None:
            self._tracker.shut_down()

    def _handle(self, request: dict[str, Any]) -> None:  # Any: JSON of the engine
        if self._tracker is None:
            self._tracker = self._open_it()
        run = TrackedRun(**request["run"])
        self._used.pop(run.run_id, None)
        self._tracker.open(run)
        self._used[run.run_id] = self._monotonic()
        if points := [TrackedPoint(*each) for each in request["points"]]:
            self._tracker.log(run, points)
        if checkpoints := [TrackedCheckpoint(*each) for each in request["checkpoints"]]:
            self._tracker.saved(run, checkpoints)

    def _close(self, run_id: str) -> None:
        del self._used[run_id]
        assert self._tracker is not None
        try:
            self._tracker.close(run_id)
        except Exception as error:  # noqa: BLE001  # on stderr, which the engine logs at debug level
            print(f"run not closed run={run_id} error={error}", file=sys.stderr)


def serve(channel: socket.socket, service: TrackerService, *, on_end: Callable[[], None] = lambda: None) -> None:
    """Answer requests until the other end of the channel is closed, then shut the tracker down.

    ``on_end`` is called at once when that happens, from another thread, even if the tracker hangs.
    """
    requests: queue.Queue[bytes | None] = queue.Queue(maxsize=2)  # the engine waits for each answer
    threading.Thread(target=_read, args=(channel, requests, on_end), daemon=True).start()
    while True:
        try:
            line = requests.get(timeout=_CHECK_SECONDS)
        except queue.Empty:
            service.tidy()
            continue
        if line is None:
            break
        channel.sendall(service.answer(line))
        service.tidy()
    service.shut_down()


def _read(channel: socket.socket, requests: queue.Queue[bytes | None], on_end: Callable[[], None]) -> None:
    with channel.makefile("rb") as lines, suppress(OSError):
        for line in lines:
            requests.put(line)
    on_end()
    requests.put(None)


def main() -> None:
    kind, directory, descriptor = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when this process ends
    os.nice(_NICENESS)
    with socket.socket(fileno=int(descriptor)) as channel:
        last_moment = threading.Timer(_LAST_SECONDS, os._exit, (1,))  # whatever the tracker does
        serve(channel, TrackerService(lambda: open_tracker(kind, Path(directory))), on_end=last_moment.start)
    os._exit(0)  # threads of trackers must not delay the end


if __name__ == "__main__":
    main()
