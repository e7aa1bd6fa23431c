"""A journal that cannot be written: training waits, says why, and goes on; nothing is lost by it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chockstone.engine.journal.segment_file import SegmentFile
from chockstone.engine.journal.writer import Stalled
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import NOW, RUN, until


@contextmanager
def full_disk(is_full: Callable[[], bool] = lambda: True) -> Iterator[None]:
    put = SegmentFile.put

    def refuse(file: SegmentFile, entry: object) -> None:
        if is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(file, entry)  # type: ignore[arg-type]  # an entry

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SegmentFile, "put", refuse)
        yield


def is_in_trouble(life: Life) -> bool:
    assert life.engine._writer is not None
    return life.engine._writer.trouble is not None


async def test_what_cannot_be_written_down_waits_and_says_why_and_is_done_when_there_is_room(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        with full_disk():
            asking = asyncio.create_task(life.ask_pass(5))
            await until(lambda: is_in_trouble(life))
            why = life.engine.why_waiting(f"{RUN}:1")
            assert why is not None and why.startswith("the journal cannot be written: the disk is full")
            assert "forward_backward" not in life.backend.words() and not asking.done()

        assert (await life.result(await asking)).body == b"loss 5"
        await until(lambda: life.engine.why_waiting(f"{RUN}:1") is None)


async def test_a_server_stops_though_its_journal_cannot_be_written(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        with full_disk():
            asking = asyncio.create_task(life.ask_pass(5))
            await until(lambda: is_in_trouble(life))
            async with asyncio.timeout(10):
                await life.engine.stop()
            with pytest.raises(Stalled):
                await asking

    async with lived(home) as second:
        assert await second.state() == (0, 0, 0)
        assert (await second.result(await second.ask_pass(5))).body == b"loss 5"


async def test_what_was_loaded_is_known_before_anything_builds_on_it(home: Path) -> None:
    """Done again, the load must not take what the run saved under that name only later."""
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        await first.told(await first.ask_save())
        await first.train(1)
        first.backend.hold("load")
        await first.ask_load()
        await first.ask_pass(10)
        await first.ask_step()
        await first.ask_save(overwrite=True)
        old = await first.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
        with full_disk():
            first.backend.let_go("load")
            for _ in range(100):
                await asyncio.sleep(0.002)
                if (await first.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive != old.archive:
                    break
            left = first.crash()

    async with lived(left) as second:
        assert await second.state() == (15, 0, 2)


async def test_what_ends_while_the_server_gives_its_journal_up_is_done_once(home: Path) -> None:
    async with lived(home) as first:
        await first.make(0)
        await first.make(1)
        await first.train(5)
        first.backend.hold("forward_backward")
        under_way = await first.ask_pass(10)
        await until(lambda: first.backend.words().count("forward_backward") == 2)
        await first.written()
        with full_disk():
            asking = asyncio.create_task(first.ask_pass(1, "s:train:1"))
            await until(lambda: is_in_trouble(first))
            stopping = asyncio.create_task(first.engine.stop())
            with pytest.raises(Stalled):
                await asking
            first.backend.let_go("forward_backward")
            await stopping

    async with lived(home, after=first) as second:
        assert (await second.result(under_way)).body == b"loss 10"
        assert await second.state() == (5, 10, 1)


async def test_an_archive_that_cannot_be_followed_by_its_journal_ends_no_run(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1)
        first.backend.hold("disk")
        await first.train(2)
        await until(lambda: first.backend.words().count("save") == 2)
        with full_disk():
            asking = asyncio.create_task(first.ask_pass(10))
            await until(lambda: is_in_trouble(first))
            stopping = asyncio.create_task(first.engine.stop())
            with pytest.raises(Stalled):
                await asking
            first.backend.let_go("disk")
            await stopping

    async with lived(home) as second:
        assert await second.state() == (3, 0, 2)
