from __future__ import annotations

import asyncio
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.engine.durability import Durability
from chockstone.wire.failures import BadRequest

from .lives import EVERY_STEP, lived
from .making import RUN, damage, until


async def test_a_recovery_archive_spares_the_replay(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2, 3)
        await first.result(await first.ask_pass(7))
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        assert await second.state() == (6, 7, 3)
        assert second.backend.words() == ["open_run", "load", "pass"]
        [receipt] = await second.receipts()
        assert receipt.archive == second.recovery_archives()[-1]
        assert (receipt.replayed, receipt.matched) == (1, 1)


async def test_a_damaged_recovery_archive_is_walked_past(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(1, 2, 3)
        older, newest = life.recovery_archives()
        damage(life.backend.store, newest)

        life.backend.die("signal 9")

        assert await life.state() == (6, 0, 3)
        [receipt] = await life.receipts()
        assert receipt.archive == older
        assert [each["archive"] for each in receipt.skipped] == [newest]
        assert (receipt.replayed, receipt.matched) == (2, 2)
        await life.train_slowly(4, 5)
        assert newest not in life.recovery_archives()
        life.backend.die("signal 9")
        assert await life.state() == (15, 0, 5)


async def test_with_one_damaged_archive_and_a_whole_journal_all_is_replayed(home: Path) -> None:
    async with lived(home, durability=Durability(steps=3)) as life:
        await life.make()
        await life.train_slowly(1, 2, 3)
        damage(life.backend.store, life.recovery_archives()[0])

        life.backend.die("signal 9")

        assert await life.state() == (6, 0, 3)
        [receipt] = await life.receipts()
        assert (receipt.archive, len(receipt.skipped), receipt.replayed) == (None, 1, 7)


async def test_a_run_without_a_good_archive_says_so_and_how_to_go_on(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(1, 2, 3)
        for archive in life.recovery_archives():
            damage(life.backend.store, archive)

        life.backend.die("signal 9")

        told = await life.told(await life.ask_step())
        assert "no recovery archive of run 's:train:0' can be read" in told["error"]
        assert "Resume it from its last checkpoint." in told["error"]
        await until_lost(life.catalog)


async def test_two_recovery_archives_are_kept_and_the_journal_is_trimmed(home: Path) -> None:
    async with lived(home, durability=Durability(steps=2)) as life:
        live = await life.make()
        sizes = []
        for number in range(60):
            await life.train_slowly(number)
            for request_id in life.asked[-2:]:
                life.engine.futures.forget(request_id)  # as when it was delivered some time ago
            sizes.append(live.journal.size_bytes)
            assert len(life.recovery_archives()) <= 2
        await life.written()

        assert max(sizes[30:]) <= 1.1 * max(sizes[:30])
        assert len(live.journal.operations) <= 12
        await until(lambda: len(list(life.journal().iterdir())) <= 4)
        assert len(life.recovery_archives()) == 2
        before = await life.state()
        life.backend.die("signal 9")
        assert await life.state() == before == (sum(range(60)), 0, 60)


async def test_results_that_nobody_fetched_outlive_the_trimming(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(*range(10))
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        assert [(await second.result(each)).body for each in first.asked[0::2]] == [
            b"loss %d" % number for number in range(10)
        ]
        steps = [await second.told(each) for each in first.asked[1::2]]
        assert [each["metrics"]["steps"] for each in steps] == list(range(1, 11))
        await second.state()
        assert second.backend.words() == ["open_run", "load"]


async def test_a_slow_run_is_archived_by_time(home: Path) -> None:
    async with lived(home, durability=Durability(steps=10**6, replay_seconds=10)) as life:
        life.backend.seconds = 1.0
        await life.make()
        await life.train(1, 2)  # four seconds of work
        assert life.recovery_archives() == []
        await life.train_slowly(3)
        assert len(life.recovery_archives()) == 1


async def test_a_recovery_archive_that_cannot_be_written_costs_nothing(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        life.backend.fail_next("disk", BadRequest("needs 99 bytes", code="no_room"))
        await life.train(1, 2)

        life.backend.die("signal 9")

        assert await life.state() == (3, 0, 2)


async def test_requests_that_fail_do_not_fill_the_journal_for_ever(home: Path) -> None:
    async with lived(home, durability=Durability(journal_bytes=100_000)) as life:
        await life.make()
        live = await life.run()
        for seq_id in range(1, 61):
            refused = await life.engine.training.forward_backward(live, seq_id, b"x" * 10_000)
            assert (await life.result(refused)).is_failure
            life.engine.futures.forget(refused)
            await live.lane.drained()

        assert live.journal.size_bytes < 200_000
        assert len(live.journal.operations) < 20
        life.backend.die("signal 9")
        assert await life.state() == (0, 0, 0)


async def until_lost(catalog: Catalog) -> None:
    async with asyncio.timeout(10):
        while (await catalog.runs.get(RUN)).state != "lost":
            await asyncio.sleep(0.001)
