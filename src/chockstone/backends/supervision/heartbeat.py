"""The heartbeat: a worker sends one every second; the server decides from them whether the worker hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chockstone.backends.calls import BeatEvent, WorkerEvent
from chockstone.backends.protocol import SamplerStatus, WorkerMemory

_BEAT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """How long a worker may be silent, or busy with one compute turn, before it counts as hung.

    Both are counted in checks by the server's event loop: a server that was suspended for an hour does not count
    that hour against its worker.
    """

    check_seconds: float = 1.0
    silence_checks: int = 30
    stuck_seconds: float = 1800.0


class HeartbeatMonitor:
    """The server's side, for one worker: call ``hear`` with each event and ``check`` every ``check_seconds``."""

    def __init__(self, limits: HeartbeatLimits) -> None:
        self._limits = limits
        self._silent_checks = 0
        self._stuck_checks = 0
        self._turns: int | None = None  # in the last beat
        self.verdict: str | None = None  # why the worker counts as hung

    def hear(self, event: WorkerEvent) -> None:
        self._silent_checks = 0
        if not isinstance(event, BeatEvent):
            return
        if not event.busy or event.turns != self._turns:
            self._stuck_checks = 0
        self._turns = event.turns

    def check(self) -> bool:
        """Whether the worker still counts as alive."""
        self._silent_checks += 1
        self._stuck_checks += 1
        limits = self._limits
        if self._silent_checks >= limits.silence_checks:
            self.verdict = f"nothing came from it for {limits.silence_checks * limits.check_seconds:g} seconds"
        elif self._stuck_checks * limits.check_seconds >= limits.stuck_seconds:
            self.verdict = f"it was busy with one piece of work for {limits.stuck_seconds:g} seconds"
        return self.verdict is None


class HeartbeatSender:
    """The worker's side: sends a beat every second, from a thread of its own.

    ``progress`` returns how many turns the compute thread has finished, and whether it is busy with another one.
    ``memory`` returns how much memory the worker uses, and ``sampler`` what its sampler does. All are called from the
    thread of the heartbeat, and must not raise.
    """

    def __init__(
        self,
        send: Callable[[BeatEvent], None],
        progress: Callable[[], tuple[int, bool]],
        memory: Callable[[], WorkerMemory] = WorkerMemory,
        sampler: Callable[[], SamplerStatus | None] = lambda: None,
    ) -> None:
        self._send = send
        self._progress = progress
        self._memory = memory
        self._sampler = sampler
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_over.wait(_BEAT_SECONDS):
            turns, is_busy = self._progress()
            self._send(BeatEvent(turns, is_busy, self._memory(), self._sampler()))
