"""Tokens that runs trained are counted once, whatever is killed, parked, closed or lost."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chockstone.catalog import CatalogUnavailable
from chockstone.engine.config import Durability, EngineLimits
from chockstone.engine.journal.scan import scan_all
from chockstone.engine.runs.run_journal import RunJournals
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import NOW, RUN, Clock, make_run, settle_down, until

HOUR = timedelta(hours=1)


async def trained(life: Life) -> dict[str, int]:
    """Tokens by owner, as they are billed."""
    await life.engine.flush_usage()
    return await written(life)


async def written(life: Life) -> dict[str, int]:
    """The same, as far as the catalog has them."""
    found: dict[str, int] = {}
    for use in await life.catalog.usage.list(None, start=NOW - 48 * HOUR, end=NOW + 48 * HOUR):
        if use.type == "training":
            found[use.owner] = found.get(use.owner, 0) + int(use.amount)
    return found


@asynccontextmanager
async def killed(home: Path, *numbers: int, flush_after: int | None = None, **facts: Any) -> AsyncIterator[Life]:
    """A server on what one left that trained these numbers and was killed."""
    async with lived(home, **facts) as first:
        await first.make()
        for count, number in enumerate(numbers):
            if count == flush_after:
                await first.engine.usage.flush()
            await first.train_slowly(number)
        await first.written()
        left = first.crash()
    async with lived(left, after=first, **facts) as second:
        yield second


async def test_what_a_killed_server_trained_is_counted_by_the_next(home: Path) -> None:
    async with killed(home, 5, 7) as life:
        assert await trained(life) == {"local": 12}


async def test_what_was_counted_before_the_kill_is_not_counted_again(home: Path) -> None:
    async with killed(home, 5, 7, 11, flush_after=2) as life:
        assert await trained(life) == {"local": 23}
        await life.state()  # all of it is replayed
        await life.train(100)

        assert await trained(life) == {"local": 123}


async def test_a_worker_that_dies_changes_no_count(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        life.backend.die("signal 9")
        await life.train(7)

        assert await trained(life) == {"local": 12}


async def test_passes_whose_results_were_deleted_with_their_segments_are_counted(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        for number in (1, 10, 100, 1000):
            await first.train_slowly(number)
            for request_id in first.asked:
                first.engine.futures.forget(request_id)
        await first.written()
        await until(lambda: len(list(first.journal().iterdir())) < 4)
        left = first.crash()
        results = [head for head in heads(left / first.journal().relative_to(home)) if head["kind"] == "result"]
    assert len(results) < 8  # a pass and a step each, and the opening

    async with lived(left, after=first) as second:
        assert await trained(second) == {"local": 1111}


def heads(journal: Path) -> list[Any]:
    return [record.head for scan in scan_all(journal) for record in scan.records]


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_pass_whose_result_did_not_reach_the_journal_is_counted_once(home: Path, is_flushed: bool) -> None:
    """The client was told, and perhaps the usage was written; then the server died before the result was."""
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        await first.result(await first.ask_pass(7))
        if is_flushed:
            assert await trained(first) == {"local": 12}
        await first.written()
        left = first.crash()
    cut_last_record(left / first.journal().relative_to(home))

    async with lived(left, after=first) as second:
        await second.state()
        assert await trained(second) == {"local": 12}
        await second.train(100)
        await second.written()
        again = second.crash()
    async with lived(again, after=second) as third:
        assert await trained(third) == {"local": 112}


def cut_last_record(journal: Path) -> None:
    last = [record for scan in scan_all(journal) for record in scan.records][-1]
    assert last.head["kind"] == "result" and last._place is not None
    os.truncate(last._place.path, last._place.offset)


async def test_a_pass_whose_result_is_damaged_in_the_journal_is_counted_once(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5, 7)
        await first.written()
        left = first.crash()
    records = [record for scan in scan_all(left / first.journal().relative_to(home)) for record in scan.records]
    [damaged] = [each for each in records if each.head.get("trained", {}).get("tokens") == 5]
    assert damaged._place is not None
    with damaged._place.path.open("r+b") as file:
        file.seek(damaged._place.offset + 60)
        file.write(b"?")

    async with lived(left, after=first) as second:
        await second.state()
        assert await trained(second) == {"local": 12}


async def test_a_run_that_was_parked_is_counted_without_being_woken(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        assert await first.engine._core.registry.park(live)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await trained(second) == {"local": 5}
        assert second.engine.runs.get(RUN) is None
        await second.train(7)
        assert await trained(second) == {"local": 12}


async def test_the_journal_of_a_parked_run_that_is_counted_is_not_read_at_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        assert await first.engine._core.registry.park(live)
        assert await trained(first) == {"local": 5}
        left = first.crash()
    read: list[str] = []
    reopen = RunJournals.reopen

    async def noting(journals: RunJournals, run_id: str, *, is_marked: bool = True) -> Any:
        read.append(run_id)
        return await reopen(journals, run_id, is_marked=is_marked)

    monkeypatch.setattr(RunJournals, "reopen", noting)
    async with lived(left, after=first) as second:
        assert await trained(second) == {"local": 5}

    assert read == []


async def test_a_closed_run_whose_journal_is_gone_is_counted(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        closing = await first.engine.training.close(live)
        await first.told(closing)
        first.engine.futures.forget(closing)
        await until(lambda: not first.journal().exists())
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await trained(second) == {"local": 5}
        assert await second.catalog.usage.position(RUN) is None  # also if the first server had no time for that


async def test_a_journal_stays_until_the_catalog_has_its_usage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(*_: object) -> None:
        raise CatalogUnavailable("the disk is full")

    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        closing = await life.engine.training.close(live)
        await life.told(closing)
        with monkeypatch.context() as patched:
            patched.setattr(life.catalog.usage, "add", unavailable)
            life.engine.futures.forget(closing)
            await settle_down()
            assert life.journal().is_dir()

        os.utime(life.journal(), (0, 0))
        await life.engine._core.unloader.sweep()
        assert not life.journal().exists()
        assert await written(life) == {"local": 5}


async def test_a_closed_run_that_the_next_server_deletes_is_counted_first(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        await first.told(await first.engine.training.close(live))
        await first.written()
        left = first.crash()
    os.utime(left / first.journal().relative_to(home), (0, 0))

    async with lived(left, after=first) as second:
        await until(lambda: not second.journal().exists())
        assert await written(second) == {"local": 5}


async def test_runs_of_several_users_are_counted_apart(home: Path) -> None:
    async with lived(home) as first:
        for model_seq_id, (session_id, owner) in enumerate((("s", "local"), ("t", "ann"), ("u", "bob"))):
            if session_id != "s":
                await first.catalog.sessions.create(session_id, owner=owner, sdk_version="0.36.0", now=NOW)
            await first.told(await make_run(first.engine, session_id=session_id, owner=owner))
            await first.train(10**model_seq_id, run_id=f"{session_id}:train:0")
        await first.written()
        left = first.crash()

    async with lived(left, after=first, limits=EngineLimits(runs=1)) as second:
        assert await trained(second) == {"local": 1, "ann": 10, "bob": 100}
        used = await second.catalog.usage.list(None, start=NOW, end=NOW + HOUR)
        assert {use.session_id: use.owner for use in used} == {"s": "local", "t": "ann", "u": "bob"}


async def test_tokens_are_counted_in_the_hour_in_which_they_were_trained(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as first:
        await first.make()
        await first.train(5)
        clock.pass_seconds(3600)
        await first.train(7)
        await first.written()
        left = first.crash()
    clock.pass_seconds(9 * 3600)

    async with lived(left, after=first, clock=clock) as second:
        await second.engine.flush_usage()
        used = await second.catalog.usage.list(None, start=NOW, end=NOW + 24 * HOUR)
        assert [(use.bucket_start - NOW, use.amount) for use in used] == [(0 * HOUR, 5), (HOUR, 7)]


async def test_a_lost_catalog_is_filled_with_what_the_journals_have(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5, 7)
        assert await trained(first) == {"local": 12}
        await first.written()
        left = first.crash()
    for lost in left.glob("catalog.sqlite3*"):
        lost.unlink()

    async with lived(left, after=first) as second:
        assert await trained(second) == {"local": 12}


async def test_a_run_that_continues_without_lost_operations_counts_the_new_ones(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        await first.written()
        kept = {path: path.read_bytes() for path in first.journal().iterdir()}
        await first.train(7)
        assert await trained(first) == {"local": 12}
        await first.written()
        left = first.crash()
    for path, content in kept.items():  # an older copy: the journal has lost its end
        (left / path.relative_to(home)).write_bytes(content)

    facts = {"durability": Durability(steps=10**6, replay_seconds=1e9, on_journal_loss="continue")}
    async with lived(left, after=first, **facts) as second:
        await second.train(100)
        await second.written()
        again = second.crash()
    async with lived(again, after=second, **facts) as third:
        assert await trained(third) == {"local": 112}


async def test_a_run_with_the_id_of_a_closed_one_is_counted_from_its_own_beginning(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        await life.told(await life.engine.training.close(live))
        await life.make()
        await life.train(3)

        assert await trained(life) == {"local": 8}


async def test_without_a_journal_tokens_are_counted_while_the_server_runs(home: Path) -> None:
    async with lived(home, durability=Durability(journal="off")) as life:
        await life.make()
        await life.train(5, 7)

        assert await trained(life) == {"local": 12}
        assert await life.catalog.usage.position(RUN) is None
