"""Threads: for calls that block and may never come back, and their manners towards the rest of the process."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")
_NICENESS: Final = 10  # a tenth of what others get, where processors are short; enough to end in time
_SWITCH_SECONDS: Final = 0.0001
_manners = threading.local()


def lower_priority() -> None:
    """From here on this thread, and those it starts, run when others leave them room. It cannot be taken back.

    Nothing happens in the main thread, which is the program's own. Only Linux has a priority for each thread; what can
    do with fewer of them asks ``has_low_priority``.
    """
    if threading.current_thread() is threading.main_thread():
        return
    _manners.has_low_priority = True
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def has_low_priority() -> bool:
    """Whether somebody else goes before this thread."""
    return getattr(_manners, "has_low_priority", False)


def tune_for_latency(*, collect: bool = True) -> None:
    """Keep what stops every thread of this process short. Call it once, when libraries and models are loaded.

    Threads take turns of a tenth of a millisecond at the interpreter instead of five whole ones, each of which an event
    loop would wait for.
    And what is in memory now is left alone by the garbage collector, above all the libraries: a collection that
    walks all of them takes hundreds of milliseconds. So does the one with which this begins, unless it ``collect``
    nothing: then what is garbage by now stays.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if collect:
        gc.collect()
    gc.freeze()


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own. Cancelling whoever waits leaves it running, with nobody to hear of it.

    ``asyncio.to_thread`` has a pool: others could keep it waiting, and ``asyncio.run`` ends only when all in it have.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # carried over to the awaiting task
            future.set_exception(error)

    threading.Thread(target=run, name="chockstone-call", daemon=True).start()
    return await asyncio.wrap_future(future)
