"""Spinning: how long OpenMP threads busy-wait for each other before they sleep.

A thread that spins reacts at once, which is best while threads have the cores to themselves. When another process uses
one of the cores, a spinning thread takes time from the thread that it waits for: two threads on two cores fell to 3 %
of their speed. So threads spin while the cores are free, and sleep early while they are shared. Results do not depend
on it.

The OpenMP of torch's wheels is GNU libgomp. It spins 300,000 times, but only 100 times while a process has more OpenMP
threads than cores. So an idle team of additional threads switches the mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

log = logging.getLogger(__name__)
VARIABLES: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # with which a user overrides this file
_LIBRARY: Final = "libgomp.so.1"
_TASKS: Final = Path("/proc/self/task")
_INTERVAL_SECONDS: Final = 0.1
_WINDOW_SECONDS: Final = 1.0  # for averages: client and API use a core for moments, which is no reason to sleep
# Share of the last second in which a thread was ready to run and did not. Client and API alone cause a part of it.
_IN_THE_WAY: Final = 0.40  # for threads that spin: measured up to 0.28 alone, 0.39 to 0.58 beside a neighbour
_FREE: Final = 0.21  # for threads that sleep early: measured up to 0.18 alone, 0.24 to 0.47 beside a neighbour
_AT_WORK: Final = 0.2  # share of the time; a thread that hardly ran tells nothing
_QUIET_SECONDS: Final = 1.0  # before it spins again
_LONGEST_QUIET_SECONDS: Final = 60.0
_SOON_SECONDS: Final = 5.0  # contention this soon means that spinning was resumed too early


def describe_waiting(environ: Mapping[str, str]) -> tuple[str, str]:
    """How threads wait, and where that setting comes from."""
    chosen = " ".join(f"{name}={environ[name]}" for name in VARIABLES if environ.get(name))
    return (chosen, "environment") if chosen else ("spin, or sleep while cores are shared", "default")


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds that a thread ran since its start, and seconds that it was ready and waited for a core."""

    ran: float
    waited: float


@dataclass(slots=True)
class Rule:
    """Decides from the times of the threads in the last interval whether they should sleep early."""

    sleeps: bool = False
    _waited: float = 0.0  # share of the time, averaged over about a second
    _quiet: float = 0.0  # seconds without contention
    _needed_quiet: float = _QUIET_SECONDS
    _since: float = field(default=float("inf"))  # seconds since spinning was resumed

    def decide(self, changes: Collection[ThreadTimes], seconds: float) -> bool:
        """``changes`` of each thread within ``seconds``."""
        waited = max((change.waited for change in changes), default=0.0) / seconds
        ran = max((change.ran for change in changes), default=0.0) / seconds
        self._since += seconds
        if self.sleeps and ran < _AT_WORK:
            return True
        self._waited += (waited - self._waited) * min(1.0, seconds / _WINDOW_SECONDS)
        if self.sleeps:
            self._consider_spinning(seconds)
        elif self._waited >= _IN_THE_WAY:
            self._sleep()
        return self.sleeps

    def _sleep(self) -> None:
        too_early = self._since < _SOON_SECONDS
        self._needed_quiet = min(2 * self._needed_quiet, _LONGEST_QUIET_SECONDS) if too_early else _QUIET_SECONDS
        self.sleeps, self._quiet = True, 0.0

    def _consider_spinning(self, seconds: float) -> None:
        self._quiet = self._quiet + seconds if self._waited <= _FREE else 0.0
        if self._quiet >= self._needed_quiet:
            self.sleeps, self._since, self._waited = False, 0.0, 0.0


class OpenMP(Protocol):
    def start_team(self, size: int) -> None:
        """Start an OpenMP team of the calling thread; it lasts as long as that thread."""


class Gomp:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def start_team(self, size: int) -> None:
        nothing = ctypes.cast(self._library.omp_get_thread_num, ctypes.c_void_p)  # called by each thread of the team
        self._library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))


class _IdleTeam:
    """More OpenMP threads than cores, all asleep."""

    def __init__(self, openmp: OpenMP, size: int) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=[openmp, size], name="idle-team", daemon=True)
        self._thread.start()

    def _hold(self, openmp: OpenMP, size: int) -> None:
        openmp.start_team(size)
        self._over.wait()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Spinning:
    """Watches the computing threads from a thread of its own."""

    def __init__(self, openmp: OpenMP, *, compute_thread: int, cores: int, tasks: Path = _TASKS) -> None:
        """``compute_thread``: the thread's native id."""
        self._openmp = openmp
        self._compute_thread = compute_thread
        self._cores = cores
        self._tasks = tasks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spinning", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        rule = Rule()
        team: _IdleTeam | None = None
        before, then = self._readings(), time.monotonic()
        while not self._over.wait(_INTERVAL_SECONDS):
            now, readings = time.monotonic(), self._readings()
            sleeps = rule.decide(_changes(before, readings), now - then)
            before, then = readings, now
            if sleeps and team is None:
                log.debug("openmp threads sleep early: other processes use the cores")
                team = _IdleTeam(self._openmp, self._cores + 1)
            elif not sleeps and team is not None:
                log.debug("openmp threads spin again")
                team.end()
                team = None
        if team is not None:
            team.end()

    def _readings(self) -> dict[int, ThreadTimes]:
        """Times of the compute thread and of all threads that Python did not start, which include those of OpenMP."""
        others = {thread.native_id for thread in threading.enumerate()} - {self._compute_thread}
        numbers = [int(name) for name in os.listdir(self._tasks)]
        readings = {number: self._read(number) for number in numbers if number not in others}
        return {number: reading for number, reading in readings.items() if reading is not None}

    def _read(self, number: int) -> ThreadTimes | None:
        try:
            ran, waited = (self._tasks / str(number) / "schedstat").read_bytes().split()[:2]
        except (OSError, ValueError):
            return None  # it has ended
        return ThreadTimes(int(ran) / 1e9, int(waited) / 1e9)


@contextlib.contextmanager
def spinning_only_where_alone(threads: int) -> Iterator[None]:
    """Adapts spinning while the block runs. The calling thread computes with ``threads``; torch is imported already.

    Does nothing for one thread, if the user has set one of ``VARIABLES``, if OpenMP is not libgomp, or if the kernel
    does not report how long threads wait.
    """
    library = _find_library()
    if threads < 2 or library is None or any(os.environ.get(name) for name in VARIABLES):
        yield
        return
    if not (_TASKS / str(threading.get_native_id()) / "schedstat").exists():
        yield
        return
    cores = len(os.sched_getaffinity(0))
    spinning = Spinning(Gomp(library), compute_thread=threading.get_native_id(), cores=cores)
    spinning.start()
    try:
        yield
    finally:
        spinning.stop()


def _find_library() -> ctypes.CDLL | None:
    """The libgomp that is loaded already."""
    try:
        return ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):
        return None


def _changes(before: Mapping[int, ThreadTimes], after: Mapping[int, ThreadTimes]) -> list[ThreadTimes]:
    pairs = [(before[number], reading) for number, reading in after.items() if number in before]
    return [ThreadTimes(now.ran - then.ran, now.waited - then.waited) for then, now in pairs]
