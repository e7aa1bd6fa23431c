"""The watchdog: measures how long callbacks hold an event loop, and finds the lines that do.

    async with LoopWatchdog(limit_seconds=0.1):     # in a test: leaving raises LoopBlocked
        ...

    watchdog = LoopWatchdog(on_stall=warn)          # in a server
    watchdog.start(asyncio.get_running_loop())

A timer on the loop (the beat) measures how late it is called. While a beat is overdue, a thread samples the stack of
the loop's thread: first when the threshold has passed, then whenever the stall has doubled. So the reported stack is
from the later half of the stall. Runs on asyncio's loop and on uvloop.

A stall is seen as at most ``interval_seconds`` shorter than it was. A beat every 50 ms, which is the
default, takes about 0.5 % of a core (measured on two busy virtual ones; most of it is waking up); one
every 5 ms takes 2 %, and is the default where there is a limit to hold.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from asyncio.events import Handle
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Final, Self

log = logging.getLogger(__name__)
_RELAXED_SECONDS: Final = 0.05
_EXACT_SECONDS: Final = 0.005
_FRAMES: Final = 20  # of a stack, the innermost ones
_BOUNDS: Final = tuple(1e-4 * 1.1**n for n in range(150))  # seconds; quantiles are exact to 10 %


class LoopBlocked(AssertionError):
    """Callbacks held an event loop for longer than its watchdog allows. ``stalls`` has the longest ones."""

    def __init__(self, stalls: tuple[Stall, ...], limit_seconds: float) -> None:
        listed = "".join(f"\n{stall.held_seconds:.3f} s:\n{stall.stack}" for stall in stalls)
        super().__init__(f"the event loop was held for more than {limit_seconds:g} s; await it in a thread:{listed}")
        self.stalls = stalls


@dataclass(frozen=True, slots=True)
class Stall:
    """One beat of the event loop that came late."""

    seconds: float  # how late the beat came
    stack: str  # of the callback, innermost frames last; "": the loop was not seen inside one
    held_seconds: float  # without what the machine or other threads took; 0 if not seen inside a callback


@dataclass(frozen=True, slots=True)
class Stalls:
    """Since the drain before: how late beats came, and the longest stalls, longest first."""

    beats: int
    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    stalls: tuple[Stall, ...]


@dataclass(frozen=True, slots=True)
class _StackSample:
    """The stack of the loop's thread while the beat that was due at ``due`` was late."""

    due: float
    stack: traceback.StackSummary | None
    overslept_seconds: float  # of the sampling thread: it could not run either


class LoopWatchdog:
    """Measures how long callbacks keep an event loop, and which.

    A stall is a beat later than ``threshold_seconds``. With ``limit_seconds``, leaving ``async with``
    raises LoopBlocked if a callback held the loop for longer. Only that counts: a machine that has no
    core free, or another thread that keeps the interpreter in a C call, delays beats as well, but
    fails no test. Such a stall is reported without a stack, or with a smaller ``held_seconds``.

    ``on_stall`` is called in the watchdog's thread when a stall is over, and must not wait for the
    loop; ``on_beat`` on the loop with every lateness. Starts once.
    """

    def __init__(
        self,
        *,
        threshold_seconds: float = 0.05,
        limit_seconds: float | None = None,
        interval_seconds: float | None = None,
        on_stall: Callable[[Stall], None] | None = None,
        on_beat: Callable[[float], None] | None = None,
        keep: int = 20,
    ) -> None:
        self._limit = limit_seconds
        self._threshold = threshold_seconds if limit_seconds is None else min(threshold_seconds, limit_seconds)
        self._interval = interval_seconds or (_RELAXED_SECONDS if limit_seconds is None else _EXACT_SECONDS)
        self._on_stall = on_stall
        self._on_beat = on_beat
        self._keep = keep
        self._lock = threading.Lock()  # held for moments only: the loop takes it
        self._news = threading.Event()  # wakes the thread: a stall is over, or the watchdog stops
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends = False
        self._sample: _StackSample | None = None
        self._unreported: list[Stall] = []
        self._blocked: list[Stall] = []  # beyond the limit
        self._forget()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch ``loop`` until ``stop``, or until it is closed. From any thread."""
        if self._thread is not None:
            raise RuntimeError("a watchdog starts once; make another one")
        self._loop = loop
        self._thread = threading.Thread(target=self._watch, name="chockstone-watchdog", daemon=True)
        loop.call_soon_threadsafe(self._begin)

    def stop(self) -> None:
        """Stop watching. A beat that is late now is still measured; on return the thread has ended."""
        if self._ends or self._thread is None:
            return
        self._ends = True  # a beat that comes now is the last
        if self._thread.ident is None:
            return  # the loop never came to begin
        if threading.get_ident() == self._loop_thread and self._timer is not None:
            self._timer.cancel()
            self._measure()
        self._news.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def __aenter__(self) -> Self:
        self.start(asyncio.get_running_loop())
        await asyncio.sleep(0)  # the first beat
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None and self._limit is not None and self._blocked:
            raise LoopBlocked(tuple(self._blocked), self._limit)

    def drain(self) -> Stalls:
        """All that was measured since the last drain, each beat and stall exactly once. From any thread."""
        with self._lock:
            counts, longest, stalls = self._counts, self._longest, self._stalls
            self._forget()
        return Stalls(
            sum(counts), _quantile(counts, longest, 0.5), _quantile(counts, longest, 0.99), longest, tuple(stalls)
        )

    def _forget(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._longest = 0.0
        self._stalls: list[Stall] = []

    # What follows runs on the loop.

    def _begin(self) -> None:
        assert self._thread is not None
        if self._ends:
            return
        below = sys._getframe().f_back
        self._below_callbacks: CodeType | None = None if below is None else below.f_code
        self._loop_thread = threading.get_ident()
        self._scheduling = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._waited = self._waited_for_a_core()
        self._thread.start()  # takes a while on a busy machine, so the first beat is due after it
        self._schedule()
        self._news.set()

    def _beat(self) -> None:
        self._measure()
        if not self._ends:
            self._schedule()

    def _schedule(self) -> None:
        self._computed = time.thread_time()
        self._due = time.monotonic() + self._interval
        self._timer = self._loop.call_later(self._interval, self._beat)

    def _measure(self) -> None:
        lateness = max(0.0, time.monotonic() - self._due)
        stall = self._judge(lateness) if lateness >= self._threshold else None
        with self._lock:
            self._counts[bisect_left(_BOUNDS, lateness)] += 1
            self._longest = max(self._longest, lateness)
            if stall is not None:
                self._stalls = self._longest_of(self._stalls, stall)
                self._unreported.append(stall)
                if self._limit is not None and stall.held_seconds > self._limit:
                    self._blocked = self._longest_of(self._blocked, stall)
        if self._on_beat is not None:
            self._on_beat(lateness)
        if stall is not None:
            self._news.set()

    def _judge(self, lateness: float) -> Stall:
        sample, waited = self._sample, self._waited
        self._waited = self._waited_for_a_core()
        if sample is None or sample.due != self._due or sample.stack is None:
            return Stall(lateness, "", 0.0)
        interpreter_taken = sample.overslept_seconds - (time.thread_time() - self._computed)
        excused = max(self._waited - waited, interpreter_taken)
        return Stall(lateness, "".join(sample.stack.format()), max(0.0, lateness - excused))

    def _longest_of(self, stalls: list[Stall], stall: Stall) -> list[Stall]:
        return sorted([*stalls, stall], key=lambda each: -each.seconds)[: self._keep]

    # What follows runs in the watchdog's thread.

    def _watch(self) -> None:
        self._news.wait()  # for the first beat to be due
        wake = self._due
        while not (self._ends or self._loop.is_closed()):
            has_news = self._news.wait(max(0.0, wake - time.monotonic()))
            self._news.clear()
            self._report()
            now, due = time.monotonic(), self._due
            if now - due < self._threshold:
                self._waited = self._waited_for_a_core()
                wake = due + self._threshold
            else:
                self._take_sample(due, overslept_seconds=0.0 if has_news else now - max(wake, due))
                wake = now + (now - due)
        self._report()

    def _take_sample(self, due: float, *, overslept_seconds: float) -> None:
        before = self._sample if self._sample is not None and self._sample.due == due else _StackSample(due, None, 0.0)
        stack = self._stack_of(sys._current_frames().get(self._loop_thread))
        self._sample = _StackSample(due, stack or before.stack, before.overslept_seconds + overslept_seconds)
        for frame in stack or ():
            _ = frame.line  # read from its file here, so that the loop need not

    def _stack_of(self, frame: FrameType | None) -> traceback.StackSummary | None:
        """The frames of the callback that the loop is in; None if it is in none."""
        callback: list[tuple[FrameType, int]] = []
        while frame is not None and frame.f_code is not self._below_callbacks:
            callback.append((frame, frame.f_lineno))
            frame = frame.f_back
        if frame is None:
            return None  # the loop waits for events, or does not run
        if not callback and frame.f_code is Handle._run.__code__:
            callback.append((frame, frame.f_lineno))  # a callback in C
        if not callback or callback[-1][0].f_code is LoopWatchdog._beat.__code__:
            return None
        return traceback.StackSummary.extract(iter(callback[_FRAMES - 1 :: -1]), lookup_lines=False)

    def _report(self) -> None:
        with self._lock:
            unreported, self._unreported = self._unreported, []
        if self._on_stall is None:
            return
        for stall in unreported:
            try:
                self._on_stall(stall)
            except Exception:
                log.exception("the callback for stalls failed; the watchdog continues")

    def _waited_for_a_core(self) -> float:
        """Seconds for which the loop's thread was runnable without a core; 0 where the system does not count them."""
        try:
            with open(self._scheduling) as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def _quantile(counts: list[int], longest: float, fraction: float) -> float:
    wanted = fraction * sum(counts)
    reached = 0
    for bound, count in zip(_BOUNDS, counts, strict=False):
        reached += count
        if reached >= wanted:
            return min(bound, longest)
    return longest
