from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints.errors import StoreDenied, StoreError, StoreUnreachable
from chockstone.engine.config import Durability
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.lives import EVERY_STEP, Life, is_still_active, lived
from support.engine.making import RUN, damage, until


async def test_a_recovery_archive_spares_the_replay(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2, 3)
        await first.result(await first.ask_pass(7))
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        assert await second.state() == (6, 7, 3)
        assert second.backend.words() == ["open_run", "load", "forward_backward"]
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a store asks again at once."""
    monkeypatch.setattr("chockstone.engine.runs.runner._RETRY_SECONDS", 0.001)


@contextmanager
def failing(life: Life, error: StoreError, *, word: str = "open", name: str = "") -> Iterator[list[str]]:
    """The store fails like this while it is asked for what has ``name`` in it; how often it was, in the list."""
    original = getattr(life.backend.store, word)
    asked: list[str] = []

    def fail(what: str = "") -> object:
        if name in what:
            asked.append(what)
            raise error
        return original(what)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(life.backend.store, word, fail)
        yield asked


TROUBLES = [StoreUnreachable("503 Slow Down"), StoreDenied("403 Forbidden")]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", TROUBLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("word", ["open", "entries"])
async def test_a_store_that_cannot_be_read_is_waited_for_and_nothing_is_replayed_meanwhile(
    home: Path, word: str, error: StoreError
) -> None:
    async with lived(home, durability=Durability(steps=3)) as life:
        live = await life.make()
        await life.train_slowly(1, 2, 3)  # the journal has all of it, too
        [newest] = life.recovery_archives()
        with failing(life, error, word=word) as asked:
            life.backend.calls.clear()
            life.backend.die("signal 9")
            waiting = asyncio.create_task(life.ask_pass(7))
            await until(lambda: len(asked) > 3)

            await until(lambda: str(error) in (life.engine.why_waiting(f"{RUN}:9") or ""))
            assert "forward_backward" not in life.backend.words()
            assert not live.is_stuck
            assert (await life.catalog.runs.get(RUN)).state == "active"

        assert (await life.result(await waiting)).body == b"loss 7"
        assert await life.state() == (6, 7, 3)
        [receipt] = await life.receipts()
        assert (receipt.archive, receipt.skipped, receipt.replayed) == (newest, [], 0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", TROUBLES, ids=lambda error: type(error).__name__)
async def test_an_older_recovery_archive_does_not_stand_in_for_one_that_cannot_be_read_now(
    home: Path, error: StoreError
) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(1, 2, 3)
        older, newest = life.recovery_archives()
        with failing(life, error, name=newest) as asked:
            life.backend.die("signal 9")
            await until(lambda: len(asked) > 3)
            assert older not in [values["archive"] for values in life.backend.values_of("load")]

        assert await life.state() == (6, 0, 3)
        assert (await life.receipts())[0].archive == newest


@pytest.mark.usefixtures("quick")
async def test_a_server_that_stops_while_it_waits_for_the_store_leaves_the_run_to_the_next(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2)
        archives = first.recovery_archives()
        with failing(first, StoreUnreachable("503 Slow Down")) as asked:
            first.backend.die("signal 9")
            asking = asyncio.create_task(first.ask_pass(7))
            await until(lambda: len(asked) > 3)
            request_id = await asking
            async with asyncio.timeout(10):
                await first.engine.stop()
        assert first.recovery_archives() == archives

    async with lived(home, after=first) as second:
        assert (await second.result(request_id)).body == b"loss 7"
        assert await second.state() == (3, 7, 2)


@pytest.mark.usefixtures("quick")
async def test_a_checkpoint_that_a_replay_needs_is_waited_for(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        await life.told(await life.ask_save("a"))
        await life.train(6)
        await life.told(await life.ask_load("a"))
        with failing(life, StoreUnreachable("503 Slow Down")) as asked:
            life.backend.die("signal 9")
            await until(lambda: len(asked) > 3)
            assert not (await life.run()).is_lost

        assert await life.state() == (5, 0, 1)


async def test_a_recovery_archive_is_read_twice_before_it_is_called_damaged(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(1, 2, 3)
        newest = life.recovery_archives()[-1]
        life.backend.fail_next("load", ServerFailure("the checkpoint cannot be loaded: block 0", code="damaged"))

        life.backend.die("signal 9")

        assert await life.state() == (6, 0, 3)
        [receipt] = await life.receipts()
        assert (receipt.archive, receipt.skipped) == (newest, [])


@pytest.mark.parametrize("code", ["newer", None])
async def test_one_that_this_server_cannot_load_stops_the_run_and_ends_nothing(
    home: Path, code: Literal["newer"] | None
) -> None:
    async with lived(home, durability=Durability(steps=3)) as first:
        await first.make()
        await first.train_slowly(1, 2, 3)
        await first.written()
        left = first.crash()

    async with lived(left, after=first) as second:
        second.backend.fail_next("load", ServerFailure("cannot be loaded here", code=code))
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "cannot be loaded by this server: cannot be loaded here" in live.state.reason
        assert "forward_backward" not in second.backend.words()
        assert await is_still_active(second)
        left = second.crash()

    async with lived(left, after=first) as third:
        assert await third.state() == (6, 0, 3)


async def test_archives_that_are_not_listed_any_more_do_not_end_the_run(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2, 3)
        await first.written()
        left = first.crash()
    sorted((left / RUN_JOURNALS / "s.train.0").iterdir())[1].unlink()  # as when nobody needs it any more
    away = (left / "checkpoints").rename(left / "elsewhere")  # as when a disk is not mounted

    async with lived(left, after=first) as second:
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "no recovery archive of run 's:train:0' can be read" in live.state.reason
        assert await is_still_active(second)
        left = second.crash()

    shutil.copytree(away, left / "checkpoints", dirs_exist_ok=True)
    async with lived(left, after=first) as third:
        assert await third.state() == (6, 0, 3)


async def until_lost(catalog: Catalog) -> None:
    async with asyncio.timeout(10):
        while (await catalog.runs.get(RUN)).state != "lost":
            await asyncio.sleep(0.001)
