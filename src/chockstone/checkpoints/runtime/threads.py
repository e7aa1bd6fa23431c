"""Threads: priorities of background threads, latency of the process, and calls in a thread of their own."""

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
_NICENESS: Final = 10  # about a tenth of the time of other threads, where cores are short
_SWITCH_SECONDS: Final = 0.0001
_this_thread = threading.local()


def lower_priority() -> None:
    """Lower the priority of this thread and of those that it starts from here on. It cannot be raised again.

    Does nothing in the main thread, which belongs to the program. Only Linux has priorities of threads. Code that can
    use fewer threads instead asks ``has_low_priority``.
    """
    if threading.current_thread() is threading.main_thread():
        return
    _this_thread.has_low_priority = True
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def has_low_priority() -> bool:
    """Whether ``lower_priority`` was called in this thread."""
    return getattr(_this_thread, "has_low_priority", False)


def tune_for_latency(*, collect: bool = True) -> None:
    """Shorten the pauses that stop all threads of this process. Call it once, when libraries and models are loaded.

    The interpreter switches threads after 0.1 ms instead of 5 ms, so that an event loop waits less for its turn.
    The garbage collector ignores all objects that exist now (``gc.freeze``), because a collection that walks all
    libraries takes hundreds of milliseconds. ``collect``: collect garbage first, which takes as long once.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if collect:
        gc.collect()
    gc.freeze()


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own. Cancelling the awaiting task leaves it running and drops its result.

    ``asyncio.to_thread`` uses a pool: other work could keep this one waiting, and ``asyncio.run`` waits for all of it.
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
