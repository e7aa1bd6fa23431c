"""How far a copy is, as the threads that follow it see it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from chockstone.checkpoints.saving.copy_progress import CopyFailed, CopyProgress


def test_ranges_count_from_the_first_byte_on_in_any_order() -> None:
    progress = CopyProgress()
    progress.advance(10, 30)
    progress.advance(0, 0)
    progress.advance(0, 10)

    progress.wait_for(30)


def test_a_gap_is_waited_for() -> None:
    progress = CopyProgress()
    progress.advance(10, 30)
    reached = threading.Event()

    def wait() -> None:
        progress.wait_for(20)
        reached.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not (progress._ranges and progress._is_reading):  # it has read of the range, and waits for more
        assert not reached.is_set()
        time.sleep(0.001)
    progress.advance(0, 10)
    waiter.join(30)

    assert reached.is_set()


def test_several_threads_wait_for_different_positions() -> None:
    progress = CopyProgress()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(progress.wait_for, position) for position in (70, 10, 80, 30, 60, 20, 50, 40)]
        for start in (70, 10, 0, 30, 20, 60, 50, 40):
            progress.advance(start, start + 10)

        assert [each.result(30) for each in waiting] == [None] * 8


def test_the_end_covers_every_byte() -> None:
    progress = CopyProgress()
    progress.end()

    progress.wait_for(10**15)
    progress.wait_until_ended()
    assert progress.ended_at > 0
    CopyProgress.ended().wait_for(10**15)


def test_a_failure_wakes_all_who_wait_and_keeps_what_was_copied() -> None:
    progress, error = CopyProgress(), OSError("no device")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(progress.wait_for, 100) for _ in range(2)]
        progress.advance(0, 10)
        progress.fail(error)

        for each in waiting:
            with pytest.raises(CopyFailed, match="no device") as caught:
                each.result(30)
            assert caught.value.error is error
    progress.wait_for(10)
    progress.wait_until_ended()
