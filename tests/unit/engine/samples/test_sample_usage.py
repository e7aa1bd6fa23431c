"""Tokens of samples are counted once, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.engine.config import Durability
from chockstone.engine.ownership.data_directory import SAMPLE_JOURNAL
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.usage import SAMPLES
from support.engine.lives import Life, lived
from support.engine.making import NOW, Clock, until

SOURCE = SamplerSource("s:sample:0", "local", "tiny", None)
OF_ANN = SamplerSource("t:sample:0", "ann", "tiny", None)


async def sample(life: Life, seq_id: int, prompt: bytes = b"abc", *, source: SamplerSource = SOURCE) -> str:
    """The fake worker generates one token for each request."""
    submitted = await life.engine.sampling.submit(source, seq_id, prompt, num_samples=1)
    assert not (await life.result(submitted.request_id)).is_failure
    return submitted.request_id


async def sampled(life: Life) -> dict[str, tuple[float, float]]:
    """Prompt tokens and generated tokens by owner, as they are billed."""
    await life.engine.flush_usage()
    found = await life.catalog.usage.list(None, start=NOW.replace(hour=0), end=NOW.replace(hour=23))
    amounts = {(use.owner, use.type): use.amount for use in found}
    return {
        owner: (amounts[owner, "sampling_prefill"], amounts[owner, "sampling_sample"])
        for owner in {use.owner for use in found if use.type.startswith("sampling")}
    }


async def test_a_sample_that_a_killed_server_answered_is_counted_by_the_next(home: Path) -> None:
    async with lived(home) as first:
        await sample(first, 0, b"abc")
        await sample(first, 1, b"abcdef", source=OF_ANN)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await sampled(second) == {"local": (3, 1), "ann": (6, 1)}
        await sample(second, 0, b"abc")  # asked for again: it gets the first answer
        assert await sampled(second) == {"local": (3, 1), "ann": (6, 1)}
        await sample(second, 2, b"ab")
        assert await sampled(second) == {"local": (5, 2), "ann": (6, 1)}


async def test_a_sample_that_was_counted_before_the_kill_is_not_counted_again(home: Path) -> None:
    async with lived(home) as first:
        await sample(first, 0)
        assert await sampled(first) == {"local": (3, 1)}
        await sample(first, 1)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await sampled(second) == {"local": (6, 2)}


async def test_a_sample_that_was_under_way_at_the_kill_is_counted_once(home: Path) -> None:
    async with lived(home) as first:
        first.backend.hold("sample")
        submitted = await first.engine.sampling.submit(SOURCE, 0, b"abc", num_samples=1)
        left = first.crash()
        first.backend.let_go("sample")

    async with lived(left, after=first) as second:
        await second.result(submitted.request_id)
        assert await sampled(second) == {"local": (3, 1)}


async def test_a_sample_that_no_client_will_ask_for_is_on_record_until_it_is_counted(home: Path) -> None:
    async with lived(home) as first:
        request_id = await sample(first, 0)
        first.engine.futures.forget(request_id)
        journal = first.engine._sample_usage.journal
        assert journal is not None
        await until(lambda: journal._unneeded)
        await journal._journal._idle.wait()
        left = first.crash()
        assert await sampled(first) == {"local": (3, 1)}
        assert (journal._unneeded, journal._uncounted) == (set(), set())

    async with lived(left, after=first) as second:
        assert await sampled(second) == {"local": (3, 1)}
        journal = second.engine._sample_usage.journal
        assert journal is not None and (journal._unneeded, journal._uncounted) == (set(), set())


async def test_a_sample_is_counted_in_the_hour_in_which_it_ended(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as first:
        await sample(first, 0)
        left = first.crash()
    clock.pass_seconds(2 * 3600)

    async with lived(left, after=first, clock=clock) as second:
        await sampled(second)
        used = await second.catalog.usage.list("local", start=NOW, end=NOW.replace(hour=23))
        assert {use.bucket_start for use in used} == {NOW}


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_sample_journal_that_lost_its_end_counts_what_is_sampled_later(home: Path, is_deleted: bool) -> None:
    """As after a power failure, or when its directory is lost."""
    async with lived(home) as first:
        for seq_id in range(5):
            await sample(first, seq_id)
        assert await sampled(first) == {"local": (15, 5)}
        left = first.crash()
    for segment in (left / SAMPLE_JOURNAL).iterdir():
        if is_deleted:
            segment.unlink()
        else:
            segment.write_bytes(segment.read_bytes()[:800])

    async with lived(left, after=first) as second:
        for seq_id in (100, 101):
            await sample(second, seq_id)
        again = second.crash()
    async with lived(again, after=second) as third:
        (prompt_tokens, tokens) = (await sampled(third))["local"]
        assert tokens >= 7  # those that it did not forget may be sampled again
        assert prompt_tokens == 3 * tokens


async def test_without_a_journal_samples_are_counted_while_the_server_runs(home: Path) -> None:
    async with lived(home, durability=Durability(journal="off")) as life:
        await sample(life, 0)

        assert await sampled(life) == {"local": (3, 1)}
        assert await life.catalog.usage.position(SAMPLES) is None
