"""The heartbeat: what a worker says of itself every second, and when its server has heard too little."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chockstone.backends.calls import BeatEvent, WorkerEvent

_BEAT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """How long a worker may be silent, or busy with one thing, before it counts as hung.

    Both are counted in checks by the server's event loop, so that a server that was stopped for an
    hour does not blame its worker for it.
    """

    check_seconds: float = 1.0
    silence_checks: int = 30
    stuck_seconds: float = 1800.0


class Watch:
    """The server's side, for one life of a worker: ``hear`` each message, ``check`` at regular times."""

    def __init__(self, patience: HeartbeatLimits) -> None:
        self._patience = patience
        self._silent_checks = 0
        self._stuck_checks = 0
        self._turns: int | None = None  # in the last beat
        self.verdict: str | None = None  # why it is taken for hung

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
        patience = self._patience
        if self._silent_checks >= patience.silence_checks:
            self.verdict = f"nothing came from it for {patience.silence_checks * patience.check_seconds:g} seconds"
        elif self._stuck_checks * patience.check_seconds >= patience.stuck_seconds:
            self.verdict = f"it was busy with one piece of work for {patience.stuck_seconds:g} seconds"
        return self.verdict is None


class Heart:
    """The worker's side: sends a beat every second, from a thread of its own.

    ``pulse`` says how many turns the compute thread has finished, and whether it is busy with one.
    """

    def __init__(self, send: Callable[[BeatEvent], None], pulse: Callable[[], tuple[int, bool]]) -> None:
        self._send = send
        self._pulse = pulse
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_over.wait(_BEAT_SECONDS):
            turns, is_busy = self._pulse()
            self._send(BeatEvent(turns, is_busy))
