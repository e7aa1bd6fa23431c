"""Saves and loads of runs that are brought back: each at its place, and once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.engine.config import Durability
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.wire.failures import BadRequest
from support.engine.lives import EVERY_STEP, Life, archived, lived
from support.engine.making import NOW, RUN, made_run, names, until


async def released_save(life: Life) -> str:
    """A save of weight 5, still being written while the run has gone on to 6."""
    await life.make()
    await life.train(5)
    life.backend.hold("disk")
    saving = await life.ask_save()
    await life.train(1)
    return saving


async def test_a_save_that_died_after_it_let_its_run_go_on_is_made_again_at_its_place(home: Path) -> None:
    async with lived(home) as life:
        saving = await released_save(life)

        life.backend.die("signal 9")

        assert (await life.told(saving))["path"] == f"tinker://{RUN}/weights/a"
        assert await archived(life) == 5
        assert await life.state() == (6, 0, 2)
        assert await names(life.engine) == {"a"}


async def test_a_save_that_died_with_its_server_is_made_again_at_its_place(home: Path) -> None:
    async with lived(home) as first:
        saving = await released_save(first)
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        assert (await second.told(saving))["path"] == f"tinker://{RUN}/weights/a"
        assert await archived(second) == 5
        assert await second.state() == (6, 0, 2)
        assert await second.catalog.checkpoints.list_pending() == ()


async def test_no_recovery_archive_is_taken_past_a_save_that_is_not_written(home: Path) -> None:
    """It would forget what the save needs to be made again."""
    async with lived(home, durability=EVERY_STEP) as life:
        saving = await released_save(life)
        await life.train(1, 1, 1)

        life.backend.die("signal 9")

        assert "path" in await life.told(saving)
        assert await archived(life) == 5
        assert await life.state() == (9, 0, 5)


async def test_a_save_that_ended_but_whose_result_was_not_written_down_is_not_made_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        with monkeypatch.context() as patched:
            patched.setattr(RunJournal, "settle", lambda journal, operation, outcome: None)
            saving = await first.ask_save()
            told = await first.told(saving)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await second.told(saving) == told
        assert "save" not in second.backend.words()
        await second.train(1)
        assert await archived(second) == 5


async def test_a_save_whose_archive_was_whole_is_committed_and_not_made_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        never = asyncio.Event()

        async def hang(*_: object, **__: object) -> None:
            await never.wait()
            raise BadRequest("too late")

        with monkeypatch.context() as patched:
            patched.setattr(first.catalog.checkpoint_saves, "commit", hang)
            saving = await first.ask_save()
            await until(lambda: first.backend.archives)
            left = first.crash()
        never.set()

    async with lived(left) as second:
        assert "error" not in await second.told(saving)
        assert "save" not in second.backend.words()
        assert await archived(second) == 5


async def test_a_checkpoint_that_was_loaded_stays_until_no_replay_needs_it(home: Path) -> None:
    async with lived(home, durability=Durability(steps=3)) as life:
        await life.make()
        await life.train(5)
        await life.told(await life.ask_save())
        old = (await life.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive
        await life.train(1)
        await life.told(await life.ask_load())
        await life.result(await life.ask_pass(10))
        await life.told(await life.ask_save(overwrite=True))
        rows = [await life.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)]
        await life.engine.checkpoints.delete(rows, by="local")
        assert set(life.backend.archives) == {old}, "what nobody loaded goes at once"

        life.backend.die("signal 9")
        assert await life.state() == (5, 10, 1)
        assert set(life.backend.archives) == {old}

        await life.train_slowly(*[1] * 9)
        await until(lambda: old not in life.backend.archives)
        life.backend.die("signal 9")
        assert await life.state() == (24, 0, 10)


async def test_a_server_that_starts_deletes_nothing_that_a_run_would_load_again(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        await first.told(await first.ask_save())
        await first.told(await first.ask_load())
        await first.train(1)
        await first.written()
        rows = [await first.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)]
        await first.engine.checkpoints.delete(rows, by="local")
        left = first.crash()

    async with lived(left) as second:
        assert await second.state() == (6, 0, 2)
        assert [row.checkpoint.name for row in await second.catalog.trash.list()] == ["a"]


async def test_a_run_made_from_a_checkpoint_comes_back_though_the_checkpoint_is_deleted(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(42)
        await life.told(await life.ask_save())
        source = await life.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
        await made_run(life.engine, 1, source=source, with_optimizer=True)
        await life.engine.checkpoints.delete([source], by="local")

        life.backend.die("signal 9")

        assert await life.state("s:train:1") == (42, 0, 1)
