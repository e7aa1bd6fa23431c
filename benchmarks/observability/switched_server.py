"""A server whose step history, metrics and traces can be switched off and on while it runs.

Two processes that do the same differ by more than what is measured here, so all contestants are one process. The
product has no such switches: this program replaces methods of the running server. ``benchmarks.live.server`` starts it
in the place of ``chockstone``; its socket, named by the environment, takes the names of the parts that are to be on.

It can also count the CPU time that each part takes in the threads that call it, and in the threads that write and
export for it. Other processes do not disturb that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import Any

SOCKET = "BENCHMARK_SWITCHES"
HISTORY, METRICS, TRACING = "history", "metrics", "tracing"
PARTS = (HISTORY, METRICS, TRACING)
_MESSAGE = 1024
_ANSWER_SECONDS = 10.0
_CALIBRATION_CALLS = 2000
_UNCOUNTED = ("__init__", "stop", "continuing", "current")  # at the start and the end; and generators


def switch(path: Path, parts: Iterable[str]) -> None:
    """Have these parts on and the others off in the server that listens at ``path``. Returns when it is so."""
    if _ask(path, "set", *parts) != "done":
        raise RuntimeError("the server did not switch")


def export(path: Path) -> None:
    """Export the spans that were recorded so far. Returns when the collector has them."""
    if _ask(path, "export") != "done":
        raise RuntimeError("the server did not export its spans")


def begin_count(path: Path) -> None:
    """Switch all parts on, and count the CPU time of each from now on."""
    if _ask(path, "count") != "done":
        raise RuntimeError("the server does not count")


def counted(path: Path) -> dict[str, tuple[float, int]]:
    """The CPU seconds of each part since ``begin_count``, which ends, and the number of calls."""
    found: dict[str, tuple[float, int]] = json.loads(_ask(path, "counted"))
    return found


def _ask(path: Path, *words: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(str(path))
        connection.sendall(" ".join(words).encode() + b"\n")
        return connection.recv(_MESSAGE).decode().strip()


Method = tuple[Any, str, Any, Any]  # owner, name, as it is, and switched off


class Switches:
    """Of this process. Made when all modules of the server are imported."""

    def __init__(self) -> None:
        from chockstone.engine.history.step_history import StepHistory
        from chockstone.telemetry import tracing
        from chockstone.telemetry.instruments import Instruments
        from chockstone.telemetry.request_metrics import RequestMetrics

        self._traced = tracing._SWITCH
        self._tracing = tracing._SWITCH.tracing
        counting = [name for name in vars(Instruments) if not name.startswith("_") and name != "render"]
        instruments = [(Instruments, name, vars(Instruments)[name], _nothing) for name in counting]
        self._methods: dict[str, list[Method]] = {
            HISTORY: [(StepHistory, "record", StepHistory.record, _nothing)],
            METRICS: [(RequestMetrics, "__call__", RequestMetrics.__call__, _passed_on), *instruments],
        }
        spans = [(owner, name) for owner in (tracing._Tracing, tracing._Recorded) for name in vars(owner)]
        self._counted: dict[str, list[tuple[Any, str, Any]]] = {
            HISTORY: [(StepHistory, "record", StepHistory.record)],
            METRICS: [each[:3] for each in instruments],
            TRACING: [
                (owner, name, vars(owner)[name])
                for owner, name in spans
                if isinstance(vars(owner)[name], FunctionType)
                and name not in ("__init__", "stop", "continuing", "current")
            ],
        }
        self._threads = {HISTORY: "history", TRACING: "OtelBatchSpan"}  # beginnings of their names
        self._timers: dict[str, _Timer] = {}
        self._began: dict[str, float] = {}

    def set(self, parts: Iterable[str]) -> None:
        wanted = set(parts)
        for part, methods in self._methods.items():
            for owner, name, real, off in methods:
                setattr(owner, name, real if part in wanted else off)
        if TRACING in wanted and self._tracing is None:
            raise RuntimeError("the server was started without traces")
        self._traced.tracing = self._tracing if TRACING in wanted else None

    def export(self) -> None:
        if self._tracing is not None:
            self._tracing._batches.force_flush()

    def count(self) -> None:
        self.set(PARTS)
        self._timers = {part: _Timer() for part in self._counted}
        for part, methods in self._counted.items():
            for owner, name, real in methods:
                setattr(owner, name, self._timers[part].timed(real))
        self._began = self._thread_seconds()

    def counted(self) -> dict[str, tuple[float, int]]:
        threads = self._thread_seconds()
        for methods in self._counted.values():
            for owner, name, real in methods:
                setattr(owner, name, real)
        return {
            part: (timer.seconds + threads.get(part, 0.0) - self._began.get(part, 0.0), timer.calls)
            for part, timer in self._timers.items()
        }

    def _thread_seconds(self) -> dict[str, float]:
        """CPU time of the threads that work for a part."""
        found = dict.fromkeys(self._threads, 0.0)
        for thread in threading.enumerate():
            for part, start in self._threads.items():
                if thread.name.startswith(start) and thread.native_id is not None:
                    stat = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                    found[part] += int(stat.split()[0]) / 1e9
        return found


class _Timer:
    """Sums the CPU time of calls, in the threads that make them, without what the clock itself takes.

    Calls within calls are not counted twice.
    """

    def __init__(self) -> None:
        self._inside = threading.local()
        self._total_seconds, self.calls, self._clock_seconds = 0.0, 0, 0.0
        empty = self.timed(_nothing)
        for _ in range(_CALIBRATION_CALLS):
            empty()
        self._clock_seconds = self._total_seconds / self.calls
        self._total_seconds, self.calls = 0.0, 0

    @property
    def seconds(self) -> float:
        return max(0.0, self._total_seconds - self.calls * self._clock_seconds)

    def timed(self, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if getattr(self._inside, "is_so", False):
                return method(*arguments, **named)
            self._inside.is_so = True
            began = time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                self._total_seconds += time.thread_time() - began
                self.calls += 1
                self._inside.is_so = False

        return call


def _nothing(*_arguments: object, **_named: object) -> None:
    return None


async def _passed_on(middleware: Any, scope: Any, receive: Any, send: Any) -> None:
    await middleware._app(scope, receive, send)


def _listen(listener: socket.socket) -> None:
    switches: Switches | None = None
    while True:
        connection, _ = listener.accept()
        with connection:
            command, *parts = connection.recv(_MESSAGE).decode().split()
            switches = switches or Switches()
            answer = "done"
            if command == "set":
                switches.set(parts)
            elif command == "export":
                switches.export()
            elif command == "count":
                switches.count()
            else:
                answer = json.dumps(switches.counted())
            connection.sendall(answer.encode() + b"\n")


def main() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[SOCKET])
    listener.listen()
    threading.Thread(target=_listen, args=(listener,), daemon=True).start()
    from chockstone.cli import main as serve

    serve()


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main()
