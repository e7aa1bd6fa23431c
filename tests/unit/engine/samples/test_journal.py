from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from chockstone.engine.futures import Result
from chockstone.engine.journal.journal import Journal, JournalDamaged, JournalWriter
from chockstone.engine.runs.operations import OperationOutcome
from chockstone.engine.samples import journal as sample_journal
from chockstone.engine.samples.completions import CURSORS
from chockstone.engine.samples.journal import FoundSample, SampleJournal
from chockstone.engine.samples.requests import SampleFacts
from support.engine.making import until
from support.engine.sampling_lives import SOURCE

OUTCOME = OperationOutcome(Result(b"tokens", "sample"), {"prompt_tokens": 3, "tokens": 2})


def facts(seq_id: int) -> SampleFacts:
    return SampleFacts(f"s:sample:0:{seq_id}", SOURCE, seq_id, num_samples=4, seed=seq_id + 100)


def key(seq_id: int) -> str:
    return facts(seq_id).request_id


@asynccontextmanager
async def opened(
    directory: Path, *, now: float = 0.0, **sizes: int
) -> AsyncIterator[tuple[SampleJournal, dict[int | None, FoundSample]]]:
    """The journal, and by seq_id what was found in it."""
    writer = JournalWriter(synced=False)
    journal = SampleJournal(directory, writer, now=lambda: now, **sizes)
    found = await journal.open()
    try:
        yield journal, {one.facts.seq_id: one for one in found}
    finally:
        await journal.close()
        await writer.close()


async def found_in(directory: Path) -> dict[int | None, FoundSample]:
    async with opened(directory) as (_, found):
        return found


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.journal"))


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def spoil(directory: Path, text: bytes) -> None:
    """Flip a bit of this text, wherever it stands."""
    for path in segments(directory):
        content = bytearray(path.read_bytes())
        if (at := content.find(text)) >= 0:
            content[at] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError(f"{text!r} is nowhere")


async def test_a_request_and_its_result_are_found_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        journal.add(facts(0), b"prompt")
        await journal.settle(key(0), OUTCOME)
        await journal.add(facts(1), b"other prompt")

    async with opened(tmp_path) as (journal, found):
        assert [one.facts for one in found.values()] == [facts(0), facts(1)]
        assert await journal.read_result(found[0]) == OUTCOME.result
        assert await journal.read_result(found[1]) is None
        assert await journal.read_body(found[1]) == b"other prompt"


async def test_what_nobody_wrote_is_empty_and_writes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "samples") as (journal, found):
        assert found == {}
        assert journal.life == 0

    assert not (tmp_path / "samples").exists()


async def test_of_several_results_the_last_one_stands(tmp_path: Path) -> None:
    cancelled = OperationOutcome(Result(b"{}", is_failure=True))
    async with opened(tmp_path) as (journal, _):
        journal.add(facts(0), b"prompt")
        journal.settle(key(0), OUTCOME)
        await journal.settle(key(0), cancelled)

    async with opened(tmp_path) as (journal, found):
        assert await journal.read_result(found[0]) == cancelled.result


async def test_what_is_gone_is_not_found_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        for seq_id in range(3):
            journal.add(facts(seq_id), b"prompt")
            journal.settle(key(seq_id), OUTCOME)
        journal.gone(key(1))
        journal.gone(key(1))
        journal.gone("never heard of")

    assert set(await found_in(tmp_path)) == {0, 2}
    assert set(await found_in(tmp_path)) == {0, 2}  # and stays so


async def test_every_run_that_did_not_end_was_a_death_of_the_worker_or_the_server(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        for seq_id in range(4):
            journal.add(facts(seq_id), b"prompt")
        journal.attempt(key(1), deaths=0)
        journal.attempt(key(1), deaths=0)
        journal.spare(key(2))
        journal.attempt(key(3), deaths=1)
        journal.attempt(key(3), deaths=2)

    for _ in range(2):  # nothing of it is lost on the one who reads it
        found = await found_in(tmp_path)
        assert {seq_id: one.server_deaths for seq_id, one in found.items()} == {0: 1, 1: 3, 2: 0, 3: 1}
        assert {seq_id: one.deaths for seq_id, one in found.items()} == {0: 0, 1: 0, 2: 0, 3: 2}


async def test_segments_go_when_nobody_needs_what_is_in_them(tmp_path: Path) -> None:
    async with opened(tmp_path, rotate_bytes=1) as (journal, _):
        for seq_id in range(5):
            await journal.add(facts(seq_id), b"prompt")
        assert len(segments(tmp_path)) == 5

        for seq_id in range(4):
            journal.gone(key(seq_id))

        await until(lambda: len(segments(tmp_path)) == 1)


async def test_a_request_that_is_gone_stays_gone_when_all_but_its_first_record_were_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path, rotate_bytes=1500) as (journal, _):
        for seq_id in range(4):  # three in the first segment, where nobody fetches the first
            journal.add(facts(seq_id), b"prompt")
        await journal.settle(key(1), OUTCOME)
        journal.gone(key(1))
        journal.gone(key(3))
        for seq_id in range(4, 8):
            await journal.add(facts(seq_id), bytes(1500))
            journal.gone(key(seq_id))
        await journal.add(facts(8), b"prompt")
        await until(lambda: len(segments(tmp_path)) == 2)

    assert set(await found_in(tmp_path)) == {0, 2, 8}
    assert set(await found_in(tmp_path)) == {0, 2, 8}


async def test_a_head_says_nothing_about_what_came_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_journal.Journal, "open", partial(Journal.open, segment_bytes=2500))
    async with opened(tmp_path, rotate_bytes=1000) as (journal, _):
        for seq_id in range(3):
            journal.add(facts(seq_id), b"prompt")
        await journal.add(facts(3), bytes(3000))  # too large for the segment: the next one repeats its head
        assert len(segments(tmp_path)) == 3

    assert set(await found_in(tmp_path)) == {0, 1, 2, 3}


async def test_nothing_is_deleted_before_it_is_on_record_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, rotate_bytes=1) as (journal, _):
        for seq_id in range(3):
            await journal.add(facts(seq_id), b"prompt")
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", refuse)
            journal.gone(key(0))
            await until(lambda: journal._writer.trouble is not None)
            assert len(segments(tmp_path)) == 3

        await until(lambda: len(segments(tmp_path)) == 2)


async def test_results_that_nobody_fetches_do_not_hold_old_segments_in_place(tmp_path: Path) -> None:
    async with opened(tmp_path, rotate_bytes=10_000, keep_bytes=50_000) as (journal, _):
        for seq_id in range(300):
            journal.add(facts(seq_id), bytes(1000))
            await journal.settle(key(seq_id), OperationOutcome(Result(b"result %d" % seq_id, "sample")))
            if seq_id % 30:
                journal.gone(key(seq_id))

        await until(lambda: sum(path.stat().st_size for path in segments(tmp_path)) < 100_000)

    async with opened(tmp_path) as (journal, found):
        assert list(found) == list(range(0, 300, 30))
        for seq_id, one in found.items():
            result = await journal.read_result(one)
            assert result is not None and result.body == b"result %d" % (seq_id or 0)


async def test_a_result_written_anew_can_be_replaced_and_go(tmp_path: Path) -> None:
    cancelled = OperationOutcome(Result(b"{}", is_failure=True))
    async with opened(tmp_path, rotate_bytes=1, keep_bytes=1) as (journal, _):
        for seq_id in range(3):
            journal.add(facts(seq_id), b"prompt")
            journal.settle(key(seq_id), OUTCOME)
        journal.add(facts(3), bytes(100_000))
        journal.gone(key(3))
        await journal.add(facts(4), b"")
        journal.settle(key(0), cancelled)
        journal.gone(key(1))

    assert any(b'"kept"' in path.read_bytes() for path in segments(tmp_path))
    async with opened(tmp_path) as (journal, found):
        assert set(found) == {0, 2, 4}
        assert await journal.read_result(found[0]) == cancelled.result
        assert await journal.read_result(found[2]) == OUTCOME.result


async def test_a_damaged_result_is_no_result(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        journal.add(facts(0), b"prompt")
        await journal.settle(key(0), OUTCOME)
    spoil(tmp_path, OUTCOME.result.body)

    async with opened(tmp_path) as (journal, found):
        assert await journal.read_result(found[0]) is None
        assert await journal.read_body(found[0]) == b"prompt"


async def test_a_damaged_request_is_not_handed_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        journal.add(facts(0), b"prompt")
        await journal.add(facts(1), b"other")
    spoil(tmp_path, b"prompt")

    async with opened(tmp_path) as (journal, found):
        with pytest.raises(JournalDamaged):
            await journal.read_body(found[0])
        assert await journal.read_body(found[1]) == b"other"


async def test_a_request_whose_facts_are_damaged_is_lost_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (journal, _):
        for seq_id in range(3):
            journal.add(facts(seq_id), b"prompt")
            journal.settle(key(seq_id), OUTCOME)
    spoil(tmp_path, key(1).encode())

    assert set(await found_in(tmp_path)) == {0, 2}


async def test_every_life_that_finds_something_is_above_those_before(tmp_path: Path) -> None:
    lives = []
    for seq_id in range(4):
        async with opened(tmp_path) as (journal, found):
            lives.append(journal.life)
            for one in found.values():
                journal.gone(one.facts.request_id)
            journal.add(facts(seq_id), b"prompt")

    assert lives == [0, 1, 2, 3]


@pytest.mark.parametrize("seconds", [1, 0.05])
async def test_lives_of_a_journal_are_above_those_of_one_that_was_lost(tmp_path: Path, seconds: float) -> None:
    async with opened(tmp_path / "lost", now=2e9) as (journal, _):
        assert journal.life == journal.first_life > 0
        await journal.add(facts(0), b"prompt")
        lost = journal.life

    async with opened(tmp_path / "next", now=2e9 + seconds) as (journal, _):
        assert journal.first_life == journal.life > lost


async def test_cursors_fit_into_63_bits_for_twenty_years(tmp_path: Path) -> None:
    async with opened(tmp_path, now=2.4e9) as (journal, _):
        assert (journal.life + 1) * CURSORS < 1 << 63


async def test_a_journal_knows_the_first_of_its_lives_as_long_as_it_is_whole(tmp_path: Path) -> None:
    firsts = []
    for restart in range(4):
        async with opened(tmp_path, now=2e9 + 100 * restart, rotate_bytes=1) as (journal, found):
            firsts.append(journal.first_life)
            for one in found.values():
                journal.gone(one.facts.request_id)
            await journal.add(facts(restart), b"prompt")

    assert len(set(firsts)) == 1
    spoil(tmp_path, key(3).encode())
    async with opened(tmp_path, now=2e9 + 1000) as (journal, found):
        assert (found, journal.first_life) == ({}, journal.life), "whoever waited for the damaged one is told"
    async with opened(tmp_path, now=2e9 + 2000) as (journal, _):
        assert firsts[0] < journal.first_life < journal.life
