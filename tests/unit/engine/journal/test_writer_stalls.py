from __future__ import annotations

import asyncio

import pytest

from chockstone.engine.journal.journal import JournalError, JournalWriter
from chockstone.engine.journal.writer import Stalled, wait_until_durable
from support.engine.making import settle_down


@pytest.fixture
def writer() -> JournalWriter:
    return JournalWriter(synced=False)


@pytest.fixture
async def durable() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def test_it_waits_until_the_record_is_durable(writer: JournalWriter, durable: asyncio.Future[None]) -> None:
    waiting = asyncio.create_task(wait_until_durable(durable, writer))
    await settle_down()
    assert not waiting.done()

    durable.set_result(None)

    await asyncio.wait_for(waiting, 10)


async def test_a_stall_says_what_troubles_the_writer(writer: JournalWriter, durable: asyncio.Future[None]) -> None:
    writer.trouble = "the disk is full: '/data'"

    with pytest.raises(Stalled, match=r"within 0\.001 seconds: the disk is full: '/data'\. Send it again"):
        await wait_until_durable(durable, writer, timeout_seconds=0.001)


async def test_a_stall_without_trouble_blames_the_disk(writer: JournalWriter, durable: asyncio.Future[None]) -> None:
    with pytest.raises(Stalled, match="the disk is slow"):
        await wait_until_durable(durable, writer, timeout_seconds=0.001)


async def test_the_record_stays_in_line_when_nobody_waits_for_it_any_more(
    writer: JournalWriter, durable: asyncio.Future[None]
) -> None:
    with pytest.raises(Stalled):
        await wait_until_durable(durable, writer, timeout_seconds=0.001)
    waiting = asyncio.create_task(wait_until_durable(durable, writer))
    await settle_down()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert not durable.cancelled()
    durable.set_result(None)
    await wait_until_durable(durable, writer)


async def test_a_record_that_will_never_be_written_is_a_stall_too(
    writer: JournalWriter, durable: asyncio.Future[None]
) -> None:
    durable.set_exception(JournalError("the server stopped before it was written"))

    with pytest.raises(Stalled, match="the server stopped before it was written"):
        await wait_until_durable(durable, writer)
