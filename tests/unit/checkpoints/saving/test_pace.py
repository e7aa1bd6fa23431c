"""A save that takes its time does so only while nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.saving.pace import Pace
from support.archives import assert_same
from support.tensors import arange

A_YEAR = 1.0  # bytes per second, for a state of many megabytes: a test that waited for it would never end


def state() -> dict[str, object]:
    return {"weights": arange(4 << 20)}


class Waits(threading.Event):
    """Says how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout or 0.0)
        return self.is_set()


def test_steps_are_as_far_apart_as_their_bytes_take() -> None:
    waits = Waits()
    pace = Pace(100.0, waits, now=lambda: 5.0)
    for size in (50, 100, 0, 25):
        pace.wait(size)
    assert waits.asked == [0.0, 0.5, 1.5, 1.5]


def test_time_that_was_not_used_is_not_made_up_for() -> None:
    waits, clock = Waits(), [0.0]
    pace = Pace(100.0, waits, now=lambda: clock[0])
    pace.wait(100)
    clock[0] = 10.0  # the disk was slow
    pace.wait(100)
    pace.wait(100)
    assert waits.asked == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_pace_that_there_is_not_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ValueError, match="positive number"):
        Checkpointer(tmp_path, bytes_per_second=rate)


def test_whoever_waits_for_the_result_does_not_wait_for_the_pace(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        handle = checkpointer.save(state(), step=1)
        assert handle.result().size_bytes > 4 << 22
        restored = checkpointer.load()
    assert_same(restored, state())


def test_closing_does_not_wait_for_the_pace(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        handle = checkpointer.save(state(), step=1)
    assert handle.done()


def test_a_save_that_needs_the_buffer_does_not_wait_for_the_pace(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        first = checkpointer.save(state(), step=1)
        second = checkpointer.save(state(), step=2)
        assert first.done()
        assert not second.done()


async def test_awaiting_leaves_the_save_its_pace(tmp_path: Path) -> None:
    async with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        handle = await checkpointer.save_async(state(), step=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, timeout=0.2)
        assert handle.progress.fraction < 1
        handle.hurry()
        assert (await handle).step == 1


def test_a_save_that_is_given_up_does_not_wait_for_the_pace(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, bytes_per_second=A_YEAR) as checkpointer:
        handle = checkpointer.save(state(), step=1)
        handle.abandon()
        with pytest.raises(SaveAbandoned):
            handle.result()
        assert checkpointer.checkpoints() == []
